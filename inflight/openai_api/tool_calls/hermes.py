"""Tool calls of Hermes and Qwen."""

from __future__ import annotations

from inflight.openai_api.tool_calls.parser import Steps, ToolCallParser

_START = "<tool_call>"
_END = "</tool_call>"


class HermesParser(ToolCallParser):
    """Reads `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`; the end tag may be missing."""

    opening = _START

    def _answer(self) -> Steps[None]:
        while (yield from self._text_until(_START)):
            if (yield from self._attempt(self._call_object())):
                yield from self._spaces()
                if not (yield from self._tag(_END)) and _END.startswith(self._unread[self._at :]):
                    self._at = len(self._unread)  # the answer ends within the tag
                self._held.clear()
