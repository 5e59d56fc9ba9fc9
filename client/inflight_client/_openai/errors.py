"""Errors of OpenAI's API, `{"error": {"message", "type", "param", "code"}}`, as those of the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight_client._http.messages import json_object
from inflight_client._http.responses import NO_ENDPOINT, code_by_status, status_error
from inflight_client.errors import ERROR_CODES, InflightError

_CODES = {
    "context_length_exceeded": "prompt_too_long",
    "unsupported_parameter": "unsupported_input",
    "invalid_value": "invalid_parameter",
    "server_overloaded": "overloaded",
    "rate_limit_exceeded": "overloaded",
    "invalid_api_key": "permission_denied",
    "internal_error": "server_gone",
    "not_found": "unsupported_deployment",
}
"""Our codes for OpenAI's; the gateway's other codes are ours."""
_MAX_RETRY_AFTER = 3600.0


def error_from_response(
    status: int, content_type: str, body: bytes, where: str, retry_after: str = ""
) -> InflightError:
    """Return the error for a response's status; `retry_after` is the header's value."""
    error = _error_from_body(status, body)
    if error is None and status in NO_ENDPOINT:
        error = InflightError(
            f"the peer at {where} has no OpenAI-compatible API (HTTP status {status}); check the address, which ends"
            " in /v1",
            "unsupported_deployment",
        )
    if error is None:
        error = status_error(status, content_type, body, where)
    if retry_after.isdigit():  # the other form, a date, is for pages
        error.retry_after = min(float(retry_after), _MAX_RETRY_AFTER)
    return error


def error_from_object(error: Mapping[str, Any], status: int = 500) -> InflightError:
    """Return the error of a response, or of a frame of a stream that had begun."""
    code = str(error.get("code") or "")
    code = _CODES.get(code, code)
    if code not in ERROR_CODES:
        code = "server_gone" if status == 500 else code_by_status(status)
    return InflightError(str(error.get("message") or "the gateway gives no reason"), code)


def _error_from_body(status: int, body: bytes) -> InflightError | None:
    try:
        error = json_object(body).get("error")
    except InflightError:
        return None
    return error_from_object(error, status) if isinstance(error, Mapping) else None
