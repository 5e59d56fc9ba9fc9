"""Streamed answers are whole answers in pieces, as OpenAI's clients expect them."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.gateway.processes import GatewayProcesses
from tests.fixtures.gateway import openai_client
from tests.fixtures.gateway_requests import MODEL, chat, complete, get, post

WORDS = [
    "tea ",
    "coffee, ",
    "안녕하세요 ",
    "日本語",
    "👩‍👩‍👧‍👦",
    "é",
    "naïve ",
    "\n",
    "“quoted” ",
    "<b>",
    "\u2028",
    "🇨🇭",
]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map("".join).filter(lambda text: text.strip())


def assembled(events: list[Any], chat: bool) -> list[dict[str, Any]]:
    """The choices of a stream, put together as OpenAI's clients do: by the index of each."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"]:
            found = choices.setdefault(
                choice["index"], {"index": choice["index"], "text": "", "logprobs": [], "finish_reason": None}
            )
            assert found["finish_reason"] is None, "text after the end"
            assert len(choices) == choice["index"] + 1 or choice["index"] in choices
            delta = choice["delta"] if chat else {"content": choice["text"]}
            found["text"] += delta.get("content") or ""
            told = choice["logprobs"] or {}
            found["logprobs"] += told.get("content", told.get("top_logprobs", []))
            found["finish_reason"] = choice["finish_reason"]
    return [choices[index] for index in range(len(choices))]


@settings(max_examples=40)
@given(
    text=TEXTS,
    n=st.integers(1, 4),
    max_tokens=st.integers(1, 40),
    seed=st.integers(0, 99),
    stop=st.lists(st.sampled_from(["tea", "안녕", "本", "é", "e, ", "👩"]), max_size=3, unique=True),
    as_chat=st.booleans(),
    logprobs=st.booleans(),
)
def test_a_stream_is_the_whole_answer_in_pieces(
    gateway: GatewayProcesses,
    text: str,
    n: int,
    max_tokens: int,
    seed: int,
    stop: list[str],
    as_chat: bool,
    logprobs: bool,
) -> None:
    fields: dict[str, Any] = {"n": n, "max_tokens": max_tokens, "seed": seed, "stop": stop}
    if logprobs:
        fields |= {"logprobs": True, "top_logprobs": n} if as_chat else {"logprobs": n}
    check_stream(gateway, text, as_chat, fields)


@pytest.mark.parametrize("as_chat", [True, False])
def test_a_stream_with_several_tokens_per_response_is_the_whole_answer(
    interval_gateway: GatewayProcesses, as_chat: bool
) -> None:
    for stop in ([], ["본"]):
        fields = {"n": 2, "max_tokens": 40, "seed": 3, "stop": stop, "logprobs": True if as_chat else 0}
        check_stream(interval_gateway, "tea, 본 안녕 and 👩 cake", as_chat, fields)


def check_stream(gateway: GatewayProcesses, text: str, as_chat: bool, fields: dict[str, Any]) -> None:
    """Compare a stream's choices and usage with those of the same request without streaming."""
    send = chat if as_chat else complete
    whole = send(gateway, text, **fields)
    stream = send(gateway, text, **fields, stream=True, stream_options={"include_usage": True})
    assert (whole.status, stream.status) == (200, 200), whole.body + stream.body
    *events, last = stream.events
    assert {event["id"] for event in events} == {last["id"]}
    assert last["choices"] == []
    assert last["usage"] == whole.json["usage"]
    choices = assembled(events, as_chat)
    for streamed, expected in zip(choices, whole.json["choices"], strict=True):
        assert streamed["text"] == (expected["message"]["content"] if as_chat else expected["text"])
        assert streamed["finish_reason"] == expected["finish_reason"]
        assert not any(word in streamed["text"] for word in fields["stop"])
        told = expected["logprobs"] or {}
        assert streamed["logprobs"] == told.get("content", told.get("top_logprobs", []))


def test_openai_s_stream_helper_and_parse_accept_the_answers(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Is there tea?"}],
        "max_tokens": 60,
        "stop": "?",
        "n": 3,
        "logprobs": True,
        "seed": 1,
    }
    with client.chat.completions.stream(**fields) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta"} <= kinds
    whole = client.chat.completions.create(**fields)
    assert {each.finish_reason for each in whole.choices} == {"stop"}
    assert [each.message.content for each in final.choices] == [each.message.content for each in whole.choices]


@pytest.mark.parametrize("as_ids", [True, False])
def test_log_probabilities_of_prompts(gateway: GatewayProcesses, as_ids: bool) -> None:
    """The engine's log probability of a token is its id / -1024, and tokens with lower ids are less likely."""
    text = "Is there tea, 안녕?"
    ids = post(gateway, "/tokenize", {"model": MODEL, "prompt": text}).json["tokens"]
    fields: dict[str, Any] = {"max_tokens": 3, "echo": True, "logprobs": 2, "prompt_logprobs": 1, "seed": 0}
    (choice,) = complete(gateway, ids if as_ids else text, **fields).json["choices"]
    told = choice["logprobs"]
    values = [None, *(-token / 1024 for token in (*ids[1:], *ids[:3]))]
    assert told["token_logprobs"] == values
    assert [top and len(top) for top in told["top_logprobs"]] == [None] + [2] * (len(values) - 1)
    shown = zip(told["tokens"], told["text_offset"], strict=True)
    assert all(choice["text"][offset:].startswith(token) for token, offset in shown if token in text)
    first, *others = choice["prompt_logprobs"]
    assert first is None
    assert [each[str(token)]["rank"] for each, token in zip(others, ids[1:], strict=True)] == [1] * (len(ids) - 1)
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1, "prompt_logprobs": 0}
    answered = post(gateway, "/v1/chat/completions", {"model": MODEL, **body}).json
    assert len(answered["prompt_logprobs"]) == answered["usage"]["prompt_tokens"]
    (end,) = post(gateway, "/tokenize", {"model": MODEL, "prompt": "<|endoftext|>", "add_special_tokens": False}).json[
        "tokens"
    ]
    ended = complete(gateway, [end, *ids], max_tokens=1, echo=True, logprobs=0).json["choices"][0]["logprobs"]
    assert ended["token_logprobs"][-1] == -end / 1024


@pytest.mark.parametrize("fields", [{"echo": True, "logprobs": 1}, {"prompt_logprobs": 0}])
def test_log_probabilities_of_prompts_are_not_streamed(gateway: GatewayProcesses, fields: dict[str, Any]) -> None:
    refused = complete(gateway, "tea", stream=True, **fields)
    assert (refused.status, refused.error["param"]) == (400, "stream")


def test_token_ids_several_prompts_and_echo(client: openai.OpenAI, gateway: GatewayProcesses) -> None:
    ids = post(gateway, "/tokenize", {"model": MODEL, "prompt": "Is there tea?"}).json["tokens"]
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "n": 2, "seed": 5}
    texts = client.completions.create(prompt=["Is there tea?", "No, coffee."], **fields)
    tokens = client.completions.create(prompt=[ids], **fields)
    assert [each.index for each in texts.choices] == [0, 1, 2, 3]
    assert [each.text for each in tokens.choices] == [each.text for each in texts.choices[:2]]
    plain = post(gateway, "/tokenize", {"prompt": "Is there tea?", "add_special_tokens": False}).json["tokens"]
    usage = client.completions.create(prompt=plain, **fields).usage
    assert usage is not None
    assert usage.prompt_tokens == len(plain) < len(ids)
    no_text = [*ids[-1:] * 3, *ids]  # not what the tokenizer makes of any text
    counted = client.completions.create(prompt=[no_text, plain], **fields).usage
    assert counted is not None
    assert counted.prompt_tokens == len(no_text) + len(plain)
    refused = post(gateway, "/v1/completions", {"model": MODEL, "prompt": [2**30], "max_tokens": 1})
    assert (refused.status, refused.error["code"], refused.error["param"]) == (400, "invalid_token_ids", "prompt")
    echoed = client.completions.create(prompt="Is there tea?", echo=True, **fields)
    assert [each.text for each in echoed.choices] == ["Is there tea?" + each.text for each in tokens.choices]


def test_an_empty_prompt_begins_with_the_model_s_first_token(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["", "Tea"], max_tokens=3)
    assert [choice.finish_reason for choice in answer.choices] == ["length"] * 2


def test_models_have_their_own_names(client: openai.OpenAI, gateway: GatewayProcesses) -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert client.models.retrieve(MODEL).id == MODEL
    assert get(gateway, "/v1/models/a%2Fb").error["code"] == "model_not_found"


def test_tokenize_and_detokenize_are_inverse(gateway: GatewayProcesses) -> None:
    text = "".join(WORDS)
    found = post(gateway, "/tokenize", {"model": MODEL, "prompt": text, "add_special_tokens": False}).json
    assert found["count"] == len(found["tokens"])
    assert post(gateway, "/detokenize", {"model": MODEL, "tokens": found["tokens"]}).json == {"prompt": text}
    rendered = post(gateway, "/tokenize", {"messages": [{"role": "user", "content": "Tea?"}]}).json
    special = post(gateway, "/tokenize", {"messages": [{"role": "user", "content": "<|im_end|><|im_start|>"}]}).json[
        "tokens"
    ]
    assert chat(gateway, "<|im_end|><|im_start|>").json["usage"]["prompt_tokens"] == len(special)
    neutral = post(gateway, "/tokenize", {"messages": [{"role": "user", "content": "tea"}]}).json["tokens"]
    for token in post(gateway, "/tokenize", {"prompt": "<|im_end|><|im_start|>", "add_special_tokens": False}).json[
        "tokens"
    ]:
        assert special.count(token) == neutral.count(token)
    assert rendered["count"] > len("Tea?")


def test_a_model_that_must_answer_json_does(model_gateway: GatewayProcesses) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}
    answer = chat(model_gateway, max_tokens=200, response_format=wanted)
    assert answer.status == 200, answer.body
    assert json.loads(answer.json["choices"][0]["message"]["content"])["a"] in ("x", "y")


def test_bounds_of_numbers_are_named_and_strings_of_a_length_are_json(model_gateway: GatewayProcesses) -> None:
    properties = {"a": {"type": "string", "maxLength": 4}, "b": {"type": "number", "minimum": 0, "maximum": 1}}
    schema = {"type": "object", "properties": properties, "required": ["a", "b"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    for seed in range(8):
        answer = chat(model_gateway, max_tokens=100, seed=seed, temperature=1.5, response_format=wanted)
        assert answer.headers["x-inflight-no-effect"] == "response_format.maximum"
        (choice,) = answer.json["choices"]
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"])["a"], str)
    wanted = {"type": "json_schema", "name": "s", "schema": schema}
    body = {"model": answer.json["model"], "input": "Tea?", "max_output_tokens": 3, "text": {"format": wanted}}
    headers = post(model_gateway, "/v1/responses", body).headers
    assert headers["x-inflight-no-effect"] == "text.format.maximum"


def test_an_answer_without_max_tokens_fits_the_engine(model_gateway: GatewayProcesses) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "tea " * 1000}]}
    answer = post(model_gateway, "/v1/chat/completions", body)
    assert answer.status == 200, answer.body
    assert answer.json["usage"]["total_tokens"] <= 2048


@pytest.mark.parametrize("stream", [False, True])
def test_what_has_no_effect_is_named(gateway: GatewayProcesses, stream: bool) -> None:
    fields: dict[str, Any] = {"user": "me", "metadata": {"a": "b"}, "verbosity": "low", "store": False}
    options: dict[str, Any] = {"include_usage": True, "continuous_usage_stats": True}
    fields |= {"stream_options": options} if stream else {}
    answer = chat(gateway, stream=stream, **fields)
    assert answer.status == 200
    names = ["user", "metadata", "verbosity", *(["stream_options.continuous_usage_stats"] if stream else [])]
    assert answer.headers["x-inflight-no-effect"] == ", ".join(names)


def test_the_request_id_is_the_caller_s(gateway: GatewayProcesses) -> None:
    assert get(gateway, "/v1/models", {"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    bad = get(gateway, "/v1/models", {"x-request-id": "a b"}).headers["x-request-id"]
    assert bad.startswith("req_")


RESPONSE: dict[str, Any] = {
    "model": MODEL,
    "instructions": "Be brief.",
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "Is there tea?"}]}],
    "temperature": 0,
    "metadata": {"a": "b"},
}


def test_the_responses_api_streams_what_it_answers(model_gateway: GatewayProcesses) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 5}}, "required": ["a"], "additionalProperties": False}
    form: Any = {"format": {"type": "json_schema", "name": "s", "schema": schema}}
    with openai_client(model_gateway) as client:
        whole = client.responses.create(**RESPONSE, text=form)
        with client.responses.stream(**RESPONSE, text=form) as stream:
            events = list(stream)
            streamed = stream.get_final_response()
    assert whole.status == streamed.status == "completed"
    assert json.loads(whole.output_text) == {"a": 5}
    assert streamed.output_text == whole.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert whole.usage is not None
    assert streamed.usage is not None
    assert whole.usage.total_tokens == streamed.usage.total_tokens
    assert streamed.usage.input_tokens_details.cached_tokens <= streamed.usage.input_tokens
    assert whole.metadata == {"a": "b"}


def test_a_response_that_was_cut_is_incomplete(client: openai.OpenAI) -> None:
    events = list(client.responses.create(**RESPONSE, max_output_tokens=5, stream=True))
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": 5}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": {"type": "xml"}}}, "response_format"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_what_a_response_can_t_have_is_refused(gateway: GatewayProcesses, fields: Any, param: str) -> None:
    answer = post(gateway, "/v1/responses", {"model": MODEL, "input": "Tea?", **fields})
    assert (answer.status, answer.error["param"]) == (400, param)
