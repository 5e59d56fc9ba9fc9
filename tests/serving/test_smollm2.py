"""A real model, from its GGUF file to answers, shows what random weights can't."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from inflight.commands.demo import PERSON, PERSON_SCHEMA, WEATHER, WEATHER_TOOL
from inflight.deploy.repository.configure import DeploymentOptions
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import EngineAtPrecision
from tests.fixtures.gateway import openai_client, running_gateway


@pytest.fixture(scope="module")
def smollm2_client(smollm2_engine: EngineAtPrecision) -> Iterator[openai.OpenAI]:
    options = DeploymentOptions(kv_cache_tokens=16384)
    with (
        shared_server(smollm2_engine("int8"), options) as server,
        running_gateway(server) as gateway,
        openai_client(gateway) as client,
    ):
        yield client


def ask(client: openai.OpenAI, question: str, **request: Any) -> Any:
    answer = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=80,
        **request,
    )
    return answer.choices[0]


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ("What is the capital of France?", "Paris"),
        ("How many days has a week?", "7"),
        ("What is tea? Answer in one sentence.", "leaves"),
    ],
)
def test_an_answer_is_right_and_ends_with_the_turn(smollm2_client: openai.OpenAI, question: str, word: str) -> None:
    choice = ask(smollm2_client, question)
    assert word in choice.message.content
    assert choice.finish_reason == "stop"


def test_an_answer_of_a_schema_has_what_the_question_says(smollm2_client: openai.OpenAI) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON_SCHEMA}}
    person = json.loads(ask(smollm2_client, PERSON, response_format=schema).message.content)
    jsonschema.validate(person, PERSON_SCHEMA)
    assert person == {"name": "Ada Lovelace", "age": 36, "city": "London"}


def test_a_tool_is_called_with_what_the_question_says(smollm2_client: openai.OpenAI) -> None:
    choice = ask(smollm2_client, WEATHER, tools=[WEATHER_TOOL], tool_choice="required")
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "get_weather")
    assert json.loads(call.function.arguments) == {"city": "Paris", "unit": "celsius"}
