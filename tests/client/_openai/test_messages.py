"""Requests, frames and errors of OpenAI's API; tests/gateway/test_commands.py has the real gateway."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from inflight_client import InflightError, Sampling
from inflight_client._openai.deployment import completion_request
from inflight_client._openai.errors import error_from_response
from inflight_client._openai.messages import CompletionRequest
from inflight_client.address import Address
from inflight_client.call import Call
from inflight_client.deployments.deployment import Deployment
from inflight_client.sampling import Guide

from tests.fixtures.errors import raises

DEPLOYMENT = Deployment("tea", "openai", decoupled=True)
MESSAGES = [{"role": "user", "content": "Tea?"}]


def request(prompt: Any = "Tea?", sampling: Sampling | None = None, **options: Any) -> CompletionRequest:
    call = Call(prompt, True, sampling=sampling or Sampling(), request_id="r", **options)
    return CompletionRequest(completion_request(DEPLOYMENT, call, None, None))


def body(*given: Any, **options: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(request(*given, **options).body)
    return found


@pytest.mark.parametrize(
    ("sampling", "temperature"),
    [
        (Sampling(), 0),
        (Sampling(temperature=0.5), 0.5),
        (Sampling(top_k=1), 0),
        (Sampling(top_k=4), None),
        (Sampling(top_p=0.5), None),
        (Sampling(top_p=0.0), 0),
    ],
)
def test_decoding_is_greedy_unless_asked(sampling: Sampling, temperature: float | None) -> None:
    assert body(sampling=sampling).get("temperature") == temperature


@pytest.mark.parametrize(
    ("guide", "expected"),
    [
        (Guide("json"), {"type": "json_object"}),
        (Guide("regex", "a+"), {"type": "regex", "regex": "a+"}),
        (Guide("ebnf_grammar", "root ::= 'a'"), {"type": "ebnf", "ebnf": "root ::= 'a'"}),
        (
            Guide("json_schema", '{"type": "object"}'),
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True}},
        ),
    ],
)
def test_guides_are_response_formats(guide: Guide, expected: Mapping[str, Any]) -> None:
    assert body(sampling=Sampling(guide=guide))["response_format"] == expected


def test_a_text_is_a_completion_and_messages_are_a_conversation() -> None:
    assert (request().path, body()["prompt"]) == ("/v1/completions", "Tea?")
    sent = body(MESSAGES, chat_template_kwargs={"enable_thinking": False}, priority=1)
    assert request(MESSAGES).path == "/v1/chat/completions"
    assert sent["messages"] == MESSAGES
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}
    assert sent["service_tier"] == "priority"


def test_options_by_token_have_their_fields() -> None:
    sampling = Sampling(logit_bias={5: 2.5}, allowed_token_ids=[5, 6], bad_words="no", min_p=0.1)
    sent = body(sampling=sampling)
    assert (sent["logit_bias"], sent["allowed_token_ids"]) == ({"5": 2.5}, [5, 6])
    assert (sent["bad_words"], sent["min_p"]) == (["no"], 0.1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"top_log_probs": 2}, "top_log_probs"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"add_special_tokens": False}, "add_special_tokens"),
        ({"tenant": "lab"}, "tenant"),
        ({"priority": 2}, "priority"),
        ({"sampling": Sampling(adapter=1)}, "adapter"),
        ({"sampling": Sampling(end_id=5)}, "end_id"),
    ],
)
def test_options_without_a_field_are_refused_by_name(options: Mapping[str, Any], named: str) -> None:
    with raises(InflightError, "unsupported_input", naming=named):
        body(**options)


def frame(delta: Mapping[str, Any], reason: str | None = None) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}).encode()


def test_reasoning_has_its_tags_again_and_the_end_has_the_usage() -> None:
    sent = request(MESSAGES)
    frames = [
        frame({"role": "assistant", "content": ""}),
        frame({"reasoning_content": "Hm"}),
        frame({"reasoning_content": "."}),
        frame({"content": "Tea."}),
        frame({}, "length"),
        b'{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}',
        b"[DONE]",
    ]
    *texts, last = [response for data in frames if (response := sent.parse_event(data)) is not None]
    assert [each.text("text_output") for each in texts] == ["<think>Hm", ".", "</think>Tea."]
    assert last.text("finish_reason") == "length"
    assert (last.integer("num_input_tokens"), last.integer("num_output_tokens"), last.id) == (3, 4, "r")


def test_other_servers_words_for_the_same_are_understood() -> None:
    sent = request(MESSAGES)
    frames = [frame({"reasoning": "Hm"}), frame({"content": "Tea."}), frame({}, "eos_token"), b"[DONE]"]
    *texts, last = [response for data in frames if (response := sent.parse_event(data)) is not None]
    assert [each.text("text_output") for each in texts] == ["<think>Hm", "</think>Tea."]
    assert (last.text("finish_reason"), last.integer("num_output_tokens")) == ("stop", None)
    logs = b'{"choices": [{"text": "Tea", "logprobs": {"content": [{"token": "Tea", "logprob": -1}]}}]}'
    found = request(return_log_probs=True).parse_event(logs)  # llama.cpp's completions
    assert found is not None
    assert found.numbers("output_log_probs") == (-1,)


@pytest.mark.parametrize(
    ("status", "body", "code", "message"),
    [
        (429, {"error": "Model is overloaded", "error_type": "overloaded"}, "overloaded", "Model is overloaded"),
        (422, {"detail": [{"loc": ["body", "n"], "msg": "must be 1"}]}, "invalid_request", "n: must be 1"),
        (404, {"object": "error", "message": "The model `x` does not exist.", "code": 404}, "model_not_found", "x"),
        (404, {"detail": "Not Found"}, "unsupported_deployment", "check the address"),
        (501, {"error": {"message": "Start it with `--reranking`", "code": 501}}, "unsupported_deployment", "rerank"),
        (401, {"error": "Unauthorized"}, "permission_denied", "Unauthorized"),
        (503, {"error": {"message": "Loading model", "code": 503}}, "model_not_ready", "Loading"),
        (
            429,
            {"error": {"message": "No credit", "code": "insufficient_quota"}},
            "permission_denied",
            "credit",
        ),
        (400, {"error": {"message": "This model's maximum context length is 8", "code": 400}}, "prompt_too_long", "8"),
        (400, {"error": {"message": "no", "type": "exceed_context_size_error", "code": 400}}, "prompt_too_long", "no"),
    ],
)
def test_errors_of_other_servers_have_our_codes(status: int, body: Any, code: str, message: str) -> None:
    found = error_from_response(status, "application/json", json.dumps(body).encode(), "tea")
    assert found.code == code
    assert message in str(found)


@pytest.mark.parametrize("data", [b"no", b"[]", b'{"choices": 3}', b'{"choices": [{"delta": 3}]}'])
def test_a_damaged_frame_is_an_error(data: bytes) -> None:
    with raises(InflightError, "answer_damaged"):
        request(MESSAGES).parse_event(data)


@pytest.mark.parametrize(
    ("status", "given", "code"),
    [
        (400, "context_length_exceeded", "prompt_too_long"),
        (400, "invalid_value", "invalid_parameter"),
        (400, "unsupported_parameter", "unsupported_input"),
        (401, "invalid_api_key", "permission_denied"),
        (404, "model_not_found", "model_not_found"),
        (429, "server_overloaded", "overloaded"),
        (429, "of_another_server", "overloaded"),
        (400, None, "invalid_request"),
        (500, "internal_error", "server_gone"),
        (500, None, "server_gone"),
        (503, "model_not_ready", "model_not_ready"),
        (502, None, "server_gone"),
        (522, None, "server_gone"),
    ],
)
def test_errors_have_our_codes(status: int, given: str | None, code: str) -> None:
    error = {"error": {"message": "no", "type": "t", "param": None, "code": given}}
    found = error_from_response(status, "application/json", json.dumps(error).encode(), "tea", 3)
    assert (found.code, found.retry_after) == (code, 3)
    if status >= 500:
        with raises(InflightError, code):
            request().parse_event(json.dumps(error).encode())


@pytest.mark.parametrize(("status", "code"), [(404, "unsupported_deployment"), (502, "server_gone")])
def test_an_error_without_a_body(status: int, code: str) -> None:
    assert error_from_response(status, "text/html", b"<html>", "tea").code == code


@pytest.mark.parametrize(
    ("text", "openai", "port"),
    [
        ("http://tea.example/v1", True, 80),
        ("https://tea.example/llm/v1/", True, 443),
        ("http://127.0.0.1:8080/v1", True, 8080),
        ("http://tea.example/v1/llm", False, 8000),
        ("http://tea.example", False, 8000),
        ("tea.example", False, 8001),
    ],
)
def test_the_address_chooses(text: str, openai: bool, port: int) -> None:
    found = Address.parse(text)
    assert (found.openai, found.port) == (openai, port)
