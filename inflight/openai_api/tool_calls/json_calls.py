"""Tool calls as JSON objects of a name and arguments, between tags."""

from __future__ import annotations

from typing import Any

from inflight.openai_api.tool_calls.parser import Steps, ToolCallParser


class JsonCallsParser(ToolCallParser):
    """Reads `START {"name": ..., "arguments": {...}} END`, several such objects or an array; the end may be missing."""

    def __init__(
        self,
        *args: Any,
        starts: tuple[str, ...],
        ends: tuple[str, ...] = (),
        bare: str = "",
        separator: str = "",
        keyed: bool = False,
        **options: Any,
    ) -> None:
        """`bare`: what an answer may begin with instead of a start, `{` or `[`; `separator` may come between calls."""
        super().__init__(*args, **options)
        self._starts, self._ends, self._bare, self._separator = starts, ends, bare, separator
        self.tags = "".join((*starts, *ends))
        self.keyed = keyed
        if bare:
            self.skipped_keys = frozenset({"type", "id"})  # so that an answer in JSON is not held back
        else:
            self.openings = starts

    def _answer(self) -> Steps[None]:
        symbol = (yield from self._spaces()) if self._bare else ""
        if symbol != self._bare:
            symbol = ""
        while symbol or (yield from self._text_until(*self._starts)):
            if (yield from self._spaces()) == "[" and (yield from self._symbol("[")):
                more = yield from self._array_of_calls()
            else:
                more = yield from self._attempt(self._call_object())
            symbol = (yield from self._behind()) if more else ""

    def _behind(self) -> Steps[str]:
        """Read what ends a call; return the character behind it if that may begin another call of the same list."""
        if self._ends and (yield from self._end_tags(*self._ends)):
            return ""
        if self._separator and (yield from self._symbol(self._separator)) and not (yield from self._spaces()):
            self._held.clear()  # the answer ends with a separator
        symbol = yield from self._spaces()
        return symbol if symbol == "{" else ""
