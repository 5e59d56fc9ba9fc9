"""What the text of one choice turns out to be, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class TextDelta(NamedTuple):
    """Text of the answer."""

    text: str


class ReasoningDelta(NamedTuple):
    """Text of the model's reasoning."""

    text: str


class ToolCallStart(NamedTuple):
    """A call begins; `call` counts the calls of a choice from 0."""

    call: int
    name: str


class ToolCallArguments(NamedTuple):
    """The next piece of a call's arguments, which are JSON."""

    call: int
    fragment: str


Event = TextDelta | ReasoningDelta | ToolCallStart | ToolCallArguments


def events_of(message: Mapping[str, Any]) -> list[Event]:
    """Return the events of a message, or of a delta of one, as servers of OpenAI's protocol send it."""
    events: list[Event] = []
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        events.append(ReasoningDelta(reasoning))
    if text := message.get("content"):
        events.append(TextDelta(text))
    for place, call in enumerate(message.get("tool_calls") or ()):
        function, index = call.get("function") or {}, call.get("index")
        index = place if index is None else int(index)
        if function.get("name"):
            events.append(ToolCallStart(index, function["name"]))
        if function.get("arguments"):
            events.append(ToolCallArguments(index, function["arguments"]))
    return events
