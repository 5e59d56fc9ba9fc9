"""Errors of OpenAI's API, in the shapes in which its many servers write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from inflight_client._http.messages import json_object
from inflight_client._http.responses import NO_ENDPOINT, code_by_status, status_error
from inflight_client.errors import ERROR_CODES, InflightError

_CODES = {
    "context_length_exceeded": "prompt_too_long",
    "exceed_context_size_error": "prompt_too_long",  # llama.cpp
    "unsupported_parameter": "unsupported_input",
    "invalid_value": "invalid_parameter",
    "server_overloaded": "overloaded",
    "rate_limit_exceeded": "overloaded",
    "overloaded_error": "overloaded",
    "insufficient_quota": "permission_denied",
    "invalid_api_key": "permission_denied",
    "internal_error": "server_gone",
    "not_found": "unsupported_deployment",
}
"""Our codes for those of OpenAI and its likes; the gateway's other codes are ours."""
_TOO_LONG = re.compile(
    r"(maximum|available|model's) context (length|size)|context length exceeded|max_new_tokens` must be"
)
_OVERLOADED = (429, 503, 529)


def error_from_response(
    status: int, content_type: str, body: bytes, where: str, retry_after: float | None = None
) -> InflightError:
    """Return the error for a response's status; `retry_after` is what its headers ask for, in seconds."""
    error = _error_from_body(status, body)
    if error is None and status in NO_ENDPOINT:
        error = InflightError(
            f"the server at {where} has no such route of OpenAI's API (HTTP status {status}); check the address, which"
            " ends in /v1, and that its model is one for this task",
            "unsupported_deployment",
        )
    if error is None:
        error = status_error(status, content_type, body, where)
        if status in _OVERLOADED and retry_after is not None:
            error = InflightError(str(error), "overloaded")
    error.retry_after = retry_after
    return error


def error_from_object(error: Mapping[str, Any], status: int = 500) -> InflightError:
    """Return the error of a response, or of a frame of a stream that had begun."""
    message = str(error.get("message") or "the server gives no reason")
    names = [str(error.get(name) or "") for name in ("code", "type")]
    code = next((_CODES.get(name, name) for name in names if _CODES.get(name, name) in ERROR_CODES), None)
    return InflightError(message, code or _code(status, message.lower()))


def error_in_frame(frame: Mapping[str, Any]) -> InflightError | None:
    """Return the error that a frame of a stream has in place of a choice."""
    found = _error_object(frame) if "choices" not in frame else None
    status = found.get("code") if found else None
    return error_from_object(found, status if isinstance(status, int) else 500) if found else None


def _code(status: int, message: str) -> str:
    if status in (400, 413, 422) and _TOO_LONG.search(message):
        return "prompt_too_long"
    if status == 404:
        return "model_not_found" if "model" in message else "unsupported_deployment"
    if status == 501:  # llama.cpp, of a route that it was not started with
        return "unsupported_deployment"
    if status in _OVERLOADED:
        return "model_not_ready" if "loading" in message else "overloaded"
    return code_by_status(status) if status < 500 or status == 504 else "server_gone"


def _error_from_body(status: int, body: bytes) -> InflightError | None:
    try:
        error = _error_object(json_object(body))
    except InflightError:
        return None
    if not error:
        return None
    found = error_from_object(error, status)
    known = status not in NO_ENDPOINT or found.code == "model_not_found" or isinstance(error.get("code"), str)
    return found if known else None  # what a web framework says of any unknown path


def _error_object(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the error with its `message`, `type` and `code`; None if the document has none."""
    error, detail = document.get("error"), document.get("detail")
    if isinstance(error, Mapping):
        return error
    if isinstance(error, str) and error:  # TGI, Ollama, OpenVINO Model Server
        return {"message": error, "type": document.get("error_type")}
    if document.get("object") == "error":  # SGLang, trtllm-serve
        return document
    if isinstance(detail, str):  # FastAPI
        return {"message": detail}
    if isinstance(detail, list) and detail:
        first = detail[0] if isinstance(detail[0], Mapping) else {}
        place = ".".join(str(part) for part in first.get("loc", ()) if part != "body")
        return {"message": f"{place}: {first.get('msg', detail[0])}" if place else str(first.get("msg", detail[0]))}
    return None
