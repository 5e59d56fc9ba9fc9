"""What the gateway refuses: by status, code and the name of the field, before anything is generated."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from inflight.gateway.processes import GatewayProcesses
from tests.fixtures.gateway_requests import MODEL, chat, complete, get, post, raw
from tests.fixtures.hostile_guides import HOSTILE_PATTERNS, HOSTILE_SCHEMAS


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "other"}, "model"),
        ({"model": 5}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user", "content": "a\0"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1e99}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"n": 10**9}, "n"),
        ({"n": 0}, "n"),
        ({"stop": ["x"] * 50_000}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"seed": 2**70}, "seed"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": "high"}}, "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"allowed_token_ids": [99999999]}, "allowed_token_ids"),
        ({"min_p": 2}, "min_p"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": ["x"] * 257}, "bad_words"),
        ({"bad_words": ["x" * 1025]}, "bad_words"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"store": True}, "store"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": "yes"}, "stream"),
        ({"no_such_field": 1}, "no_such_field"),
        ({"prompt": "x"}, "prompt"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"x": 1}, "x": 1}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "s"}}}, "response_format"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"modalities": ["audio"]}, "modalities"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_field_that_can_t_be_honoured_is_named(
    gateway: GatewayProcesses, fields: dict[str, Any], param: str, stream: bool
) -> None:
    answer = chat(gateway, **{"stream": stream, **fields} if "stream_options" not in fields else fields)
    assert answer.status == (404 if fields.get("model") == "other" else 400), answer.body
    assert answer.error["param"] == param
    assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_is_a_status_also_for_a_stream(gateway: GatewayProcesses, stream: bool) -> None:
    answer = complete(gateway, max_tokens=10**6, stream=stream)
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")


HOSTILE_FORMATS = [
    *({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}} for schema in HOSTILE_SCHEMAS),
    *({"type": "regex", "regex": pattern} for pattern in HOSTILE_PATTERNS),
]


@pytest.mark.parametrize("number", range(len(HOSTILE_FORMATS)))
def test_a_hostile_format_is_refused_or_followed(model_gateway: GatewayProcesses, number: int) -> None:
    answer = chat(model_gateway, response_format=HOSTILE_FORMATS[number], max_tokens=4)
    assert answer.status in (200, 400), answer.body
    assert complete(model_gateway, max_tokens=2).status == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"null", 400),
        (b"[]", 400),
        (b'"x"', 400),
        (b"\xff\xfe", 400),
        (b'{"model": NaN}', 400),
        (b"[" * 50_000, 400),
        (b'{"a":' * 500 + b"1" + b"}" * 500, 400),
        (b'{"model":"' + b"x" * 2**24 + b'"}', 413),
    ],
    ids=range(10),
)
def test_a_body_that_is_no_request_is_refused(gateway: GatewayProcesses, body: bytes, status: int) -> None:
    answer = post(gateway, "/v1/chat/completions", body)
    assert answer.status == status
    assert answer.error["message"]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\nx",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 50_000 + b"\r\n",
        b"GET /v1/models/%00%ff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n",
        b"PROPFIND /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
        b"",
    ],
    ids=range(13),
)
def test_bytes_that_are_no_request_do_no_harm(gateway: GatewayProcesses, data: bytes) -> None:
    answer = raw(gateway, data)
    assert not answer or answer.split(b" ")[1][:1] == b"4" or b"404" in answer, answer[:200]
    assert get(gateway, "/health").status == 200


def test_a_request_that_never_ends_holds_up_nobody(gateway: GatewayProcesses) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port)) as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n")
        assert complete(gateway).status == 200


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/v1/nothing", "GET", 404),
        ("/v1/chat/completions", "GET", 405),
        ("/v1/embeddings", "GET", 405),
        ("/v2/models", "GET", 404),
        ("/v2/health/ready", "GET", 404),
        ("/v1/models", "DELETE", 405),
    ],
)
def test_other_routes_are_refused_by_name(gateway: GatewayProcesses, path: str, method: str, status: int) -> None:
    answer = get(gateway, path, method=method)
    assert answer.status == status
    assert path in answer.error["message"]


def test_an_expired_deadline_is_504(gateway: GatewayProcesses) -> None:
    body = {"model": MODEL, "prompt": "tea", "max_tokens": 2000}
    answer = post(gateway, "/v1/completions", body, {"x-inflight-deadline-ms": "50"})
    assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
    assert answer.headers["x-should-retry"] == "false"
    stream = post(gateway, "/v1/completions", {**body, "stream": True}, {"x-inflight-deadline-ms": "1500"})
    assert stream.status == 200
    assert stream.events[-1]["error"]["code"] == "deadline_exceeded"


def test_other_origins_may_not_read_answers(gateway: GatewayProcesses) -> None:
    assert "access-control-allow-origin" not in get(gateway, "/v1/models", {"origin": "http://evil.example"}).headers
    form = post(gateway, "/v1/completions", json.dumps({"model": MODEL}).encode(), {"content-type": "text/plain"})
    assert form.status == 400


def test_nothing_in_an_error_names_a_file_or_a_module(gateway: GatewayProcesses) -> None:
    values: list[Any] = [5, {}, [[]]]
    bodies = [chat(gateway, **{name: value}).body for name in ("messages", "tools", "seed") for value in values]
    for body in bodies:
        assert not any(word in body for word in (b"/", b"Traceback", b".py", b"inflight."))
