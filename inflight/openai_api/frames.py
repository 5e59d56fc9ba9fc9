"""Frames of a streamed response: `data: {...}` lines, made of byte templates, since one is written for every token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import orjson
from inflight_client.results import Usage

from inflight.openai_api.events import Event, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStart
from inflight.openai_api.response import ResponseHead, chat_logprobs, text_logprobs, usage_body
from inflight.openai_api.token_text import TextOffsets, TokenLogprob

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
_MARK = "\x00"


def event_frame(body: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


class ChoiceWriter(Protocol):
    """Writes the frames of one choice."""

    @property
    def has_calls(self) -> bool: ...
    def first(self) -> bytes: ...
    def text(self, text: str) -> bytes: ...
    def events(self, events: Iterable[Event], logprobs: Sequence[TokenLogprob]) -> bytes: ...
    def finish(self, reason: str) -> bytes: ...


class ChoiceFrames:
    """Writes the frames of one choice of a completion."""

    def __init__(self, head: ResponseHead, index: int, usage_null: bool, call_id: str) -> None:
        self._chat, self._index, self._call_id = head.chat, index, call_id
        key = "delta" if head.chat else "text"
        choice = {"index": index, key: _MARK, "logprobs": _MARK, "finish_reason": _MARK}
        body = head.fields(chunk=True) | {"choices": [choice]} | ({"usage": None} if usage_null else {})
        mark = orjson.dumps(_MARK)
        self._before, self._logprobs, self._reason, self._after = event_frame(body).split(mark)
        self._null_tail = self._logprobs + b"null" + self._reason + b"null" + self._after
        self._before_content = self._before + b'{"content":'
        self._content_tail = b"}" + self._null_tail
        self._offsets = TextOffsets()
        self.has_calls = False

    def first(self) -> bytes:
        """Return the frame with the role, which comes once for each choice of a conversation."""
        return self._frame({"role": "assistant", "content": ""}) if self._chat else b""

    def text(self, text: str) -> bytes:
        """Return the frame of a piece of text without log probabilities."""
        if self._chat:
            return self._before_content + orjson.dumps(text) + self._content_tail
        return self._before + orjson.dumps(text) + self._null_tail

    def events(self, events: Iterable[Event], logprobs: Sequence[TokenLogprob]) -> bytes:
        """Return the frames of events; log probabilities are in the first of them, or in one without text."""
        frames = []
        for event in events:
            match event:
                case TextDelta(text):
                    frames.append(self._text_frame(text, logprobs))
                    logprobs = ()
                case ReasoningDelta(text):
                    frames.append(self._frame({"reasoning_content": text}))
                case ToolCallStart(index, name):
                    self.has_calls = True
                    function = {"name": name, "arguments": ""}
                    call = {"index": index, "id": f"{self._call_id}{index}", "type": "function", "function": function}
                    frames.append(self._frame({"tool_calls": [call]}))
                case ToolCallArguments(index, fragment):
                    frames.append(self._frame({"tool_calls": [{"index": index, "function": {"arguments": fragment}}]}))
        if logprobs:
            frames.append(self._text_frame("", logprobs))
        return b"".join(frames)

    def finish(self, reason: str) -> bytes:
        """Return the frame with the finish reason, which has no text."""
        delta = b"{}" if self._chat else b'""'
        return self._before + delta + self._logprobs + b"null" + self._reason + orjson.dumps(reason) + self._after

    def _frame(self, delta: Mapping[str, Any]) -> bytes:
        return self._before + orjson.dumps(delta) + self._null_tail

    def _text_frame(self, text: str, logprobs: Sequence[TokenLogprob]) -> bytes:
        if not logprobs:
            return self.text(text)
        if self._chat:
            delta, described = orjson.dumps({"content": text}), chat_logprobs(logprobs)
        else:
            delta, described = orjson.dumps(text), text_logprobs(logprobs, self._offsets, text)
        return self._before + delta + self._logprobs + orjson.dumps(described) + self._reason + b"null" + self._after


def usage_frame(head: ResponseHead, usage: Usage) -> bytes:
    """Return the frame before `[DONE]`, which has no choices."""
    return event_frame(head.fields(chunk=True) | {"choices": [], "usage": usage_body(usage)})


def error_frame(body: Mapping[str, Any]) -> bytes:
    """Return the frame that ends a stream that fails after its first token."""
    return event_frame(body)
