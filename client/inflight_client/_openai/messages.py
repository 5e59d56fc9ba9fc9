"""Messages of OpenAI's API: a request, outputs from the frames of its stream, and errors.

https://platform.openai.com/docs/api-reference/chat/streaming. Answers are always streamed: closing the connection of a
stream cancels it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inflight_client._http.infer_requests import StreamedRequest
from inflight_client._http.messages import HttpResponse, json_object, json_value
from inflight_client._http.responses import NO_ENDPOINT, code_by_status, malformed, status_error
from inflight_client.errors import ERROR_CODES, InflightError
from inflight_client.transport import InferRequest

_DONE = b"[DONE]"
_THINK, _END_THINK = "<think>", "</think>"
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


class CompletionRequest(StreamedRequest):
    """A request and the state of its stream. A text is sent to /v1/completions, messages to /v1/chat/completions."""

    def __init__(self, request: InferRequest) -> None:
        """Raises InflightError `invalid_text` for what cannot be sent."""
        super().__init__()
        self.id = request.id
        self._chat = "messages" in request.body
        self.path = "/v1/chat/completions" if self._chat else "/v1/completions"
        self.headers: Mapping[str, str] = {**request.headers, "x-request-id": request.id[:64]}
        try:
            self.body = json.dumps(request.body, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise InflightError(f"the request can't be encoded as UTF-8: {error.reason}", "invalid_text") from None
        self._reason = ""
        self._usage: Mapping[str, Any] = {}
        self._sum_log_probs = 0.0
        self._thinking = False

    def parse_event(self, data: bytes) -> HttpResponse | None:
        """Return the outputs of a frame; None if it adds no text. The last has the finish reason and the usage."""
        if data == _DONE:
            return HttpResponse(self._last_outputs()) if self._reason else None
        frame = json_object(data)
        if isinstance(error := frame.get("error"), Mapping):
            raise error_from_object(error)
        try:
            self._usage = frame.get("usage") or self._usage
            outputs: dict[str, Any] = {}
            for choice in frame.get("choices", ()):  # one, or none in the frame with the usage
                self._reason = choice.get("finish_reason") or self._reason
                outputs = {"text_output": self._text(choice), **self._log_probs(choice.get("logprobs"))}
        except (AttributeError, KeyError, TypeError) as error:
            raise malformed("a frame of a stream", f"{type(error).__name__}: {error}") from None
        return HttpResponse(outputs) if outputs.get("text_output") or "output_log_probs" in outputs else None

    def _last_outputs(self) -> dict[str, Any]:
        outputs: dict[str, Any] = {"id": self.id, "text_output": "", "finish_reason": self._reason}
        if self._usage:
            outputs["num_input_tokens"] = self._usage.get("prompt_tokens")
            outputs["num_output_tokens"] = self._usage.get("completion_tokens")
            outputs["num_cached_tokens"] = (self._usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        return outputs

    def _text(self, choice: Mapping[str, Any]) -> str:
        """Return the text of a choice, with reasoning between the tags that the gateway took away."""
        if not self._chat:
            return choice.get("text") or ""
        delta = choice.get("delta") or {}
        reasoning, content = delta.get("reasoning_content") or "", delta.get("content") or ""
        if reasoning and not self._thinking:
            reasoning, self._thinking = _THINK + reasoning, True
        if content and self._thinking:
            content, self._thinking = _END_THINK + content, False
        return reasoning + content

    def _log_probs(self, logprobs: Mapping[str, Any] | None) -> dict[str, Any]:
        if not logprobs:
            return {}
        values = [each["logprob"] for each in logprobs["content"]] if self._chat else logprobs["token_logprobs"]
        if not values:
            return {}
        self._sum_log_probs += sum(values)
        return {"output_log_probs": values, "cum_log_probs": self._sum_log_probs}


def models(body: bytes) -> list[tuple[str, str]]:
    """Parse the list of models: the name and task of each. Raises InflightError `answer_damaged` for invalid data."""
    try:
        return [(str(each["id"]), str(each.get("task") or "")) for each in json_object(body)["data"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise malformed("the list of models", f"{type(error).__name__}: {error}") from None


def version(body: bytes) -> str:
    value = json_value(body)
    return str(value.get("version", "")) if isinstance(value, dict) else ""


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
