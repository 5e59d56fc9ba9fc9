"""Tools through the whole gateway, with a model whose answer is constrained to calls."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from inflight.gateway.processes import GatewayProcesses
from tests.fixtures.gateway import openai_client
from tests.fixtures.gateway_requests import MODEL, chat, post

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Basel"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": "The weather.", "parameters": CITY}}
    for name in ("weather", "forecast")
]
NAMED = {"type": "function", "function": {"name": "forecast"}}


@pytest.mark.parametrize(("choice", "parallel"), [("required", False), (NAMED, True)])
def test_a_required_call_is_streamed_as_it_is_answered(
    model_gateway: GatewayProcesses, choice: Any, parallel: bool
) -> None:
    fields: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Is it warm?"}],
        "tools": TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
        "max_tokens": 300,
        "seed": 3,
        "temperature": 1,
        "n": 2,
    }
    with openai_client(model_gateway) as client:
        whole = client.chat.completions.create(**fields)
        with client.chat.completions.stream(**fields) as stream:
            streamed = stream.get_final_completion()
    assert whole.usage is not None
    assert 0 < whole.usage.completion_tokens <= 600
    for each, other in zip(whole.choices, streamed.choices, strict=True):
        assert each.finish_reason == other.finish_reason == ("stop" if choice == NAMED else "tool_calls")
        (call,), (other_call,) = each.message.tool_calls or [], other.message.tool_calls or []
        assert call.type == other_call.type == "function"
        assert call.function.name in (("forecast",) if choice == NAMED else ("weather", "forecast"))
        assert json.loads(call.function.arguments)["city"] in ("Bern", "Basel")
        assert (call.function.name, call.function.arguments) == (
            other_call.function.name,
            other_call.function.arguments,
        )
        assert each.message.content is None


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_an_unknown_format_are_refused(gateway: GatewayProcesses, stream: bool) -> None:
    answer = chat(gateway, tools=TOOLS, stream=stream)
    assert (answer.status, answer.error["param"]) == (400, "tools")
    assert answer.headers["x-inflight-tool-call-parser"] == "none"


def test_tools_that_must_not_be_called_are_no_obstacle(gateway: GatewayProcesses) -> None:
    assert chat(gateway, tools=TOOLS, tool_choice="none").status == 200


def test_a_parsed_answer_is_an_object(model_gateway: GatewayProcesses) -> None:
    from pydantic import BaseModel

    class Answer(BaseModel):
        good: bool

    with openai_client(model_gateway) as client:
        done = client.chat.completions.parse(
            model=MODEL, messages=[{"role": "user", "content": "?"}], response_format=Answer, n=2, max_tokens=300
        )
    assert all(isinstance(choice.message.parsed, Answer) for choice in done.choices)
    assert isinstance(done, openai.types.chat.ChatCompletion)


def test_what_is_counted_is_what_is_served(model_gateway: GatewayProcesses) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    messages: list[Any] = [
        {"role": "user", "content": "Is it warm?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "20 degrees"},
    ]
    for fields in (
        {},
        {"tools": TOOLS, "tool_choice": "required"},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ):
        body = {"model": MODEL, "messages": messages, **fields}
        counted = post(model_gateway, "/tokenize", {name: each for name, each in body.items() if name != "tool_choice"})
        served = post(model_gateway, "/v1/chat/completions", {**body, "max_tokens": 1})
        assert counted.json["count"] == served.json["usage"]["prompt_tokens"]
