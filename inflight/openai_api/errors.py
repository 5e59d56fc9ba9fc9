"""Errors as OpenAI's API reports them: an HTTP status and `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from inflight_client import InflightError, InvalidRequest
from inflight_client.errors import ERROR_CODES

_STATUS = {
    "permission_denied": 403,
    "model_not_found": 404,
    "text_not_computed": 422,
    "clip_not_computed": 422,
    "model_failed": 500,
    "overloaded": 429,
    "unsupported_deployment": 500,
    "answer_damaged": 500,
    "client_closed": 503,
    "client_forked": 500,
    "deadline_exceeded": 504,
}
"""Status by code; other codes are 400 for an invalid request, and 503 for a server that can't be reached or starts."""

_CODES = {
    "prompt_too_long": "context_length_exceeded",
    "unsupported_input": "unsupported_parameter",
    "invalid_parameter": "invalid_value",
    "overloaded": "server_overloaded",
}
"""OpenAI's codes for ours; other codes are the same."""

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

_ADDRESSED = {
    "server_unreachable",
    "host_not_found",
    "connection_closed",
    "server_gone",
    "permission_denied",
    "unsupported_deployment",
    "answer_damaged",
}
"""Codes of errors that name the address of a server, which is not for applications to know."""

_log = logging.getLogger(__name__)

RETRY_SECONDS = 2
"""Retry-After while no server is ready."""


class ApiError(Exception):
    """A request that is answered with an error. `code` is one of `inflight_client.errors`, or one of OpenAI's."""

    def __init__(
        self,
        message: str,
        code: str,
        param: str | None = None,
        status: int = 400,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.param, self.status = code, param, status
        self.headers = dict(headers or {})

    @classmethod
    def from_error(cls, error: InflightError, param: str | None = None) -> ApiError:
        """Return a client's error as an answer; the SDKs send requests again that may succeed later."""
        status = status_of(error)
        headers = {}
        if status in (429, 503):
            headers["retry-after"] = str(math.ceil(error.retry_after or RETRY_SECONDS))
        elif status == 504:
            headers["x-should-retry"] = "false"
        message = str(error)
        if error.code in _ADDRESSED:
            _log.warning("a request failed: %s", message)
            message = f"the model's server failed: {ERROR_CODES[error.code].meaning}; send the request again later"
        return cls(message, error.code, param, status, headers)

    def body(self) -> dict[str, Any]:
        return error_body(str(self), self.code, self.status, self.param)


@contextmanager
def errors_of(param: str) -> Iterator[None]:
    """Raise the client's errors as those of a field."""
    try:
        yield
    except InflightError as error:
        raise ApiError.from_error(error, param) from None


def context_length_exceeded(limit: int, prompt_tokens: int, param: str, max_tokens: int | None = None) -> ApiError:
    """Return the error in OpenAI's words, by which applications know that they must shorten a conversation."""
    if max_tokens is None:
        asked = f"your {param} resulted in at least {prompt_tokens} tokens"
    else:
        asked = (
            f"you requested {prompt_tokens + max_tokens} tokens ({prompt_tokens} in the {param}, {max_tokens} in the"
            " completion)"
        )
    return ApiError(
        f"This model's maximum context length is {limit} tokens. However, {asked}. Please reduce the length of the"
        f" {param}{'' if max_tokens is None else ' or completion'}. [context_length_exceeded]",
        "prompt_too_long",
        param,
    )


def status_of(error: InflightError) -> int:
    return _STATUS.get(error.code, 400 if isinstance(error, InvalidRequest) else 503)


def error_body(message: str, code: str, status: int, param: str | None) -> dict[str, Any]:
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": _CODES.get(code, code)}}


def shutting_down() -> ApiError:
    return ApiError(
        "the gateway is shutting down; send the request again",
        "model_not_ready",
        status=503,
        headers={"retry-after": "1", "connection": "close"},
    )
