"""A real model, from its GGUF file to answers, shows what random weights can't."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from inflight.deploy.repository.configure import DeploymentOptions
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import DemoEngine
from tests.fixtures.gateway import openai_client, running_gateway


@pytest.fixture(scope="module")
def smollm2_client(smollm2_engine: DemoEngine) -> Iterator[openai.OpenAI]:
    options = DeploymentOptions(kv_cache_tokens=16384)
    with (
        shared_server(smollm2_engine("int8"), options) as server,
        running_gateway(server) as gateway,
        openai_client(gateway) as client,
    ):
        yield client


def test_an_answer_is_right_and_ends_with_the_turn(smollm2_client: openai.OpenAI) -> None:
    answer = smollm2_client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=40,
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
