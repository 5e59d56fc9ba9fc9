"""What answers over HTTP in a Triton server's place is distinguished from one that is in trouble."""

from __future__ import annotations

import pytest
from inflight_client._http.responses import json_body, status_error
from inflight_client.errors import InflightError

from tests.fixtures.errors import raises

WHERE = "http://triton.example:8000/llm"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/plain; charset=utf-8", b""),
        ("text/plain", b"# HELP nv_requests How many"),
        ("text/html", b"<html>"),
        ("", b""),
    ],
)
def test_pages_of_other_servers_are_not_asked_for_again(kind: str, body: bytes) -> None:
    with raises(InflightError, "unsupported_deployment", naming=WHERE) as caught:
        json_body(200, kind, body, WHERE)
    assert (caught.value.code, caught.value.retry) == ("unsupported_deployment", False)


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "text/plain"])
def test_what_is_json_by_its_type_or_its_looks_is_read(kind: str) -> None:
    assert json_body(200, kind, b' {"name": "triton"}', WHERE) == b' {"name": "triton"}'


@pytest.mark.parametrize(
    ("status", "body", "code", "retry"),
    [
        (404, b'{"error":"Not Found"}', "unsupported_deployment", False),  # Triton's own, of a path it does not know
        (405, b'{"error":"Method Not Allowed"}', "unsupported_deployment", False),  # its metrics port's
        (404, b'{"error":"Request for unknown model: \'x\' is not found"}', "model_not_found", False),
        (302, b"", "invalid_parameter", False),
        (502, b"<html>", "server_gone", True),
        (503, b"", "server_gone", True),
    ],
)
def test_a_wrong_address_is_told_from_a_server_that_is_away(status: int, body: bytes, code: str, retry: bool) -> None:
    error = status_error(status, "text/plain", body, WHERE)
    assert (error.code, error.retry) == (code, retry)


def test_an_openai_api_at_an_address_without_v1_is_named() -> None:
    body = b'{"error":{"message":"no such path","type":"invalid_request_error","param":null,"code":"not_found"}}'
    error = status_error(404, "application/json", body, "http://127.0.0.1:8080")
    assert error.code == "unsupported_deployment"
    assert "/v1" in str(error)
