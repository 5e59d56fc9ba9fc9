"""The answers of gpt-oss: messages on channels, some to functions."""

from __future__ import annotations

import re
from typing import Any

from inflight.openai_api.events import ReasoningDelta, TextDelta
from inflight.openai_api.partial_match import partial_match
from inflight.openai_api.tool_calls.parser import Steps, ToolCallParser

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>")
_END = re.compile("|".join(map(re.escape, _ENDS)))
_FUNCTION = re.compile(r"to=(?:functions\.)?([\w.-]+)")
_ANALYSIS = re.compile(r"<\|channel\|>\s*analysis")
_MAX_HEADER = 512


class HarmonyParser(ToolCallParser):
    """Reads `<|channel|>analysis<|message|>...<|end|>`, and so on.

    Messages to an offered function are calls; others are reasoning on the channel `analysis`, and else content.
    """

    tags = "".join((_MESSAGE, *_ENDS, "<|constrain|>"))

    def __init__(self, *args: Any, reasoning: bool = True, **options: Any) -> None:
        """Without `reasoning`, it is content too."""
        super().__init__(*args, **options)
        self._reasoning = reasoning

    def _answer(self) -> Steps[None]:
        symbol = yield from self._spaces()
        if symbol and symbol not in "<t":  # an answer that was forced into another form
            yield from self._rest_is_text()
        while (header := (yield from self._until(_MESSAGE, _MAX_HEADER))) is not None:
            function = _FUNCTION.search(header)
            self._held.clear()
            if function and function[1] in self._names and (yield from self._attempt(self._call(function[1]))):
                yield from self._body(None)
            else:
                analysis = self._reasoning and _ANALYSIS.search(header)
                yield from self._body(ReasoningDelta if analysis else TextDelta)
            self.openings = ("<",)  # what is left of a header is dropped
        if self.openings and self._ended:
            self._held.clear()
        yield from self._rest_is_text()

    def _call(self, name: str) -> Steps[bool]:
        return (yield from self._arguments(name)) is not None

    def _body(self, delta: type[TextDelta] | type[ReasoningDelta] | None) -> Steps[None]:
        """Give out the rest of a message, or drop it."""
        while True:
            end = _END.search(self._unread, self._at)
            held = 0 if self._ended else max(partial_match(self._unread, tag, self._at) for tag in _ENDS)
            stop = end.start() if end else len(self._unread) - held
            if delta is not None and stop > self._at:
                self._flush_text()
                self._blank = False
                self._events.append(delta(self._unread[self._at : stop]))
            self._at = stop
            if end and end[0] in ("<|start|>", "<|channel|>"):
                return  # the next header begins
            if end:
                self._at = end.end()
                return
            if self._ended:
                return
            yield
