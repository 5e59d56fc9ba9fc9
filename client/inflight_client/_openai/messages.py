"""Messages of OpenAI's API: a request, outputs from the frames of its stream, and errors.

https://platform.openai.com/docs/api-reference/chat/streaming. Answers are always streamed: closing the connection of a
stream cancels it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpcore2

from inflight_client._http import channel
from inflight_client._http.infer_requests import StreamedRequest
from inflight_client._http.messages import HttpResponse, json_object
from inflight_client._http.responses import malformed
from inflight_client._openai.errors import error_in_frame
from inflight_client.dialects import CHAT, COMPLETIONS, adapted, route_path
from inflight_client.errors import InflightError
from inflight_client.transport import InferRequest

_DONE = b"[DONE]"
_REASONS = {"eos_token": "stop", "stop_sequence": "stop"}
"""OpenAI's finish reasons for those of Text Generation Inference."""
_THINK, _END_THINK = "<think>", "</think>"


class CompletionRequest(StreamedRequest):
    """A request and the state of its stream. A text is sent to /v1/completions, messages to /v1/chat/completions."""

    def __init__(self, request: InferRequest) -> None:
        """Raises InflightError `invalid_text` for what cannot be sent."""
        super().__init__()
        self.id = request.id
        self._chat = "messages" in request.body
        self.path = CHAT if self._chat else COMPLETIONS
        self.headers: Mapping[str, str] = {**request.headers, "x-request-id": request.id[:64]}
        self._fields = request.body
        self.body = encoded(request.body)
        self._reason = ""
        self._usage: Mapping[str, Any] = {}
        self._sum_log_probs = 0.0
        self._thinking = False

    def begin(self, response: httpcore2.Response, where: str) -> None:
        check_event_stream(response, where)

    def adapt(self, dialect: str, api: str) -> None:
        """Spell the request for the server, whose API has the path `api`. Raises InflightError `unsupported_input`."""
        route = CHAT if self._chat else COMPLETIONS
        if dialect != "inflight":
            self.body = encoded(adapted(dialect, route, self._fields))
        self.path = route_path(dialect, route, api)

    def parse_event(self, data: bytes) -> HttpResponse | None:
        """Return the outputs of a frame; None if it adds no text. The last has the finish reason and the usage."""
        if data == _DONE:
            return HttpResponse(self._last_outputs()) if self._reason else None
        frame = json_object(data)
        if (error := error_in_frame(frame)) is not None:
            raise error
        try:
            self._usage = frame.get("usage") or self._usage
            outputs: dict[str, Any] = {}
            for choice in frame.get("choices", ()):  # one, or none in the frame with the usage
                self._reason = finish_reason(choice) or self._reason
                outputs = {"text_output": self._text(choice), **self._log_probs(choice.get("logprobs"))}
        except (AttributeError, KeyError, TypeError) as reason:
            raise malformed("a frame of a stream", f"{type(reason).__name__}: {reason}") from None
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
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        content = delta.get("content") or ""
        if reasoning and not self._thinking:
            reasoning, self._thinking = _THINK + reasoning, True
        if content and self._thinking:
            content, self._thinking = _END_THINK + content, False
        return reasoning + content

    def _log_probs(self, logprobs: Mapping[str, Any] | None) -> dict[str, Any]:
        if not logprobs:
            return {}
        content = logprobs.get("content")  # of a chat, and of llama.cpp's completions
        values = logprobs["token_logprobs"] if content is None else [each["logprob"] for each in content]
        if not values:
            return {}
        self._sum_log_probs += sum(values)
        return {"output_log_probs": values, "cum_log_probs": self._sum_log_probs}


def finish_reason(choice: Mapping[str, Any]) -> str:
    """Return a choice's finish reason by OpenAI's name; empty before the end."""
    reason = choice.get("finish_reason") or ""
    return _REASONS.get(reason, reason)


def check_event_stream(response: httpcore2.Response, where: str) -> None:
    """Raise InflightError `unsupported_deployment` unless the answer is streamed; its last event marks its end."""
    kind = channel.content_type(response)
    if not kind.startswith("text/event-stream"):
        raise InflightError(
            f"the server at {where} sends {kind or 'no type'!r} where a stream was asked for; check the address",
            "unsupported_deployment",
        )


def encoded(body: Mapping[str, Any]) -> bytes:
    """Return a body as JSON. Raises InflightError `invalid_text` for what cannot be sent."""
    try:
        return json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InflightError(f"the request can't be encoded as UTF-8: {error.reason}", "invalid_text") from None
