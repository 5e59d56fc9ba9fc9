"""Builds whole responses: `CreateChatCompletionResponse`, `CreateCompletionResponse`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inflight_client.results import Usage

from inflight.openai_api.events import Event, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStart
from inflight.openai_api.token_text import TextOffsets, TokenLogprob


@dataclass(frozen=True)
class ResponseHead:
    """What all choices and chunks of a response share. `id` is without its prefix."""

    id: str
    created: int
    model: str
    chat: bool
    fingerprint: str | None = None
    service_tier: str | None = None

    def fields(self, chunk: bool = False) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self.chat else "text_completion"
        prefix = "chatcmpl-" if self.chat else "cmpl-"
        fields: dict[str, Any] = {
            "id": prefix + self.id, "object": kind, "created": self.created, "model": self.model
        }  # fmt: skip
        if self.fingerprint is not None:
            fields["system_fingerprint"] = self.fingerprint
        if self.service_tier is not None:
            fields["service_tier"] = self.service_tier
        return fields


@dataclass
class ToolCall:
    id: str
    name: str
    fragments: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": "".join(self.fragments)},
        }


@dataclass
class Choice:
    """Collects one choice; a ChoiceWriter without frames."""

    index: int
    call_id: str = ""
    """The prefix of the ids of this choice's calls."""
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    finish_reason: str = "stop"

    @property
    def has_calls(self) -> bool:
        return bool(self.calls)

    def first(self) -> bytes:
        return b""

    def text(self, text: str) -> bytes:
        self.texts.append(text)
        return b""

    def finish(self, reason: str) -> bytes:
        self.finish_reason = reason
        return b""

    def events(self, events: Iterable[Event], logprobs: Sequence[TokenLogprob]) -> bytes:
        if self.logprobs is not None:
            self.logprobs += logprobs
        for event in events:
            match event:
                case TextDelta(text):
                    self.texts.append(text)
                case ReasoningDelta(text):
                    self.reasoning.append(text)
                case ToolCallStart(index, name):
                    self.calls.append(ToolCall(f"{self.call_id}{index}", name))
                case ToolCallArguments(index, fragment):
                    self.calls[index].fragments.append(fragment)
        return b""

    def chat_choice(self) -> dict[str, Any]:
        content = "".join(self.texts)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not self.calls else None,
            "refusal": None,
        }
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = [call.as_dict() for call in self.calls]
        return {
            "index": self.index,
            "message": message,
            "logprobs": None if self.logprobs is None else chat_logprobs(self.logprobs),
            "finish_reason": self.finish_reason,
        }

    def text_choice(self) -> dict[str, Any]:
        return {
            "text": "".join(self.texts),
            "index": self.index,
            "logprobs": None
            if self.logprobs is None
            else text_logprobs(self.logprobs, TextOffsets(), "".join(self.texts)),
            "finish_reason": self.finish_reason,
            **_prompt_logprobs(self.prompt_logprobs),
        }


def response_body(head: ResponseHead, choices: Sequence[Choice], usage: Usage | None) -> dict[str, Any]:
    body = head.fields()
    body["choices"] = [choice.chat_choice() if head.chat else choice.text_choice() for choice in choices]
    if head.chat:
        body |= _prompt_logprobs(choices[0].prompt_logprobs)
    if usage is not None:
        body["usage"] = usage_body(usage)
    return body


def usage_body(usage: Usage) -> dict[str, Any]:
    body: dict[str, Any] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }
    if usage.cached_tokens is not None:
        body["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    return body


def finish_reason_of(reason: str, calls: bool) -> str:
    """Return OpenAI's finish reason for the client's."""
    if reason in ("length", "content_filter"):
        return reason
    return "tool_calls" if calls else "stop"


def logprobs_of(choice: Mapping[str, Any]) -> list[TokenLogprob]:
    """Return the log probabilities of a choice, or of a piece of one, as servers of OpenAI's protocol send them."""
    scores = choice.get("logprobs")
    if not isinstance(scores, Mapping):
        return []
    if tokens := scores.get("content"):
        return [_scored(each, tuple(map(_scored, each.get("top_logprobs") or ()))) for each in tokens]
    tokens, values = scores.get("tokens") or (), scores.get("token_logprobs") or ()
    return [
        TokenLogprob(
            *(text, None if "\ufffd" in text or text.startswith("bytes:") else list(text.encode()), _number(value)),
            likeliest=tuple(TokenLogprob(other, None, _number(each)) for other, each in (top or {}).items()),
        )
        for text, value, top in zip(tokens, values, scores.get("top_logprobs") or [None] * len(tokens), strict=True)
    ]


def _scored(token: Mapping[str, Any], likeliest: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    return TokenLogprob(token["token"], token.get("bytes"), _number(token.get("logprob")), likeliest=likeliest)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def chat_logprobs(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    content = [{**_chat_logprob(each), "top_logprobs": list(map(_chat_logprob, each.likeliest))} for each in logprobs]
    return {"content": content, "refusal": None}


def _chat_logprob(each: TokenLogprob) -> dict[str, Any]:
    return {"token": each.text, "logprob": _finite(each.logprob), "bytes": each.bytes}


def text_logprobs(logprobs: Sequence[TokenLogprob], offsets: TextOffsets, text: str) -> dict[str, Any]:
    """`offsets`: those of the choice; `text` is what its text goes on with."""
    return {
        "tokens": [_name(each) for each in logprobs],
        "token_logprobs": [_finite(each.logprob) for each in logprobs],
        "top_logprobs": [
            None
            if math.isnan(each.logprob)
            else {_name(token): _finite(token.logprob) for token in (*each.likeliest, each)}
            for each in logprobs
        ],
        "text_offset": offsets.take(logprobs, text),
    }


def _name(each: TokenLogprob) -> str:
    """Return a token's text; of one that is part of a character its bytes, as OpenAI does, which no other token has."""
    if each.bytes and "\ufffd" in each.text:
        return "bytes:" + "".join(map("\\x{:02x}".format, each.bytes))
    return each.text


def _prompt_logprobs(logprobs: Sequence[TokenLogprob] | None) -> dict[str, Any]:
    """Return vLLM's field with the tokens of a prompt, the first one null. Ranks are known of the likeliest alone."""
    if logprobs is None:
        return {}
    places: list[dict[str, Any] | None] = []
    for each in logprobs:
        ranked = {token.id: (token, place) for place, token in enumerate(each.likeliest, 1)}
        tokens = {each.id: (each, None), **ranked}
        places.append(
            {
                str(token_id): {"logprob": _finite(token.logprob), "rank": rank, "decoded_token": token.text}
                for token_id, (token, rank) in tokens.items()
            }
        )
    return {"prompt_logprobs": [None, *places[1:]]}


def _finite(value: float) -> float | None:
    """Return -9999 for -inf, which JSON has not: OpenAI's value for very unlikely tokens. Null for none."""
    return None if math.isnan(value) else max(float(value), -9999.0)
