"""Separates a model's reasoning from its answer."""

from __future__ import annotations

from inflight.openai_api.events import Event, ReasoningDelta, TextDelta

START, END = "<think>", "</think>"


class ReasoningParser:
    """Text from `<think>` at the beginning to `</think>` is reasoning; with `inside`, the prompt ended with the first.

    Line ends around both are dropped.
    """

    done = False

    def __init__(self, inside: bool = False) -> None:
        self._inside: bool | None = True if inside else None
        """None: at the beginning, where it is still open."""
        self._pending = ""
        self._strip = True

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        self._pending += text
        if self._inside is None:
            begun = self._pending.lstrip()
            if START.startswith(begun):
                return events
            self._inside = begun.startswith(START)
            if self._inside:
                self._pending = begun.removeprefix(START)
            else:
                self._strip = False
        if self._inside:
            before, end, after = self._pending.partition(END)
            keep = 0 if end else held_back(before, END)
            # Line ends before the end are dropped, so they are kept until more comes.
            given = before[: len(before) - keep]
            given, rest = (given.rstrip("\n"), "") if end else (given.rstrip("\n"), before[len(given.rstrip("\n")) :])
            self._give(events, ReasoningDelta, given)
            self._pending = rest
            if end:
                self._inside, self._strip, self._pending = False, True, after
        if self._inside is False:
            self._give(events, TextDelta, self._pending)
            self._pending = ""
        return events

    def finish(self) -> list[Event]:
        pending, self._pending = self._pending, ""
        if not pending:
            return []
        return [ReasoningDelta(pending) if self._inside else TextDelta(pending)]

    def _give(self, events: list[Event], kind: type[ReasoningDelta] | type[TextDelta], text: str) -> None:
        if self._strip:
            text = text.lstrip("\n")
        if text:
            self._strip = False
            events.append(kind(text))


def held_back(text: str, marker: str) -> int:
    """Return how many characters at the end of a text may begin a marker."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
