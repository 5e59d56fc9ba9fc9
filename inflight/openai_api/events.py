"""What the text of one choice turns out to be, piece by piece."""

from __future__ import annotations

from typing import NamedTuple


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
