"""Tool calls with the function's name before arguments in JSON."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from inflight.openai_api.tool_calls.parser import Steps, ToolCallParser

_MAX_HEADER = 256
_SPACES = re.compile(r"\s+")


class NamedCallsParser(ToolCallParser):
    """Reads `START header {...} END`, where the header is one of some forms with the function's name."""

    def __init__(
        self,
        *args: Any,
        start: str,
        headers: tuple[str, ...],
        sections: tuple[str, ...] = (),
        ends: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        """In `headers`, {name} is the name and {id} what may be any short text; spaces don't matter."""
        super().__init__(*args, **options)
        self._start, self._headers, self._sections, self._ends = start, headers, sections, ends
        self.tags = "".join((start, *headers, *sections, *ends))
        self.openings = (start, *sections)

    def _answer(self) -> Steps[None]:
        while (yield from self._call_tag(self._start, *self._sections)):
            if (yield from self._attempt(self._call())):
                yield from self._end_tags(*self._ends)

    def _call(self) -> Steps[bool]:
        header = yield from self._until("{", _MAX_HEADER)
        if header is None:
            return False
        self._held.pop()
        self._at -= 1
        matches = (_pattern(form).fullmatch(_SPACES.sub("", header)) for form in self._headers)
        name = next((match["name"] for match in matches if match and match["name"] in self._names), None)
        return name is not None and (yield from self._arguments(name)) is not None


@lru_cache(64)
def _pattern(form: str) -> re.Pattern[str]:
    pattern = re.escape(form).replace(r"\{name\}", r"(?P<name>[\w.-]{1,64})").replace(r"\{id\}", r"[^<>]{0,64}")
    return re.compile(pattern)
