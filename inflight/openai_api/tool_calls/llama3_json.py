"""Tool calls of Llama 3."""

from __future__ import annotations

from inflight.openai_api.tool_calls.parser import Steps, ToolCallParser

_TAG = "<|python_tag|>"


class Llama3JsonParser(ToolCallParser):
    """Reads `{"name": ..., "parameters": {...}}` at the beginning of an answer or behind `<|python_tag|>`.

    More calls may follow, with or without `;` between them. The tag is a special token, which may be skipped.
    """

    skipped_keys = frozenset({"type", "id"})  # so that an answer in JSON is not held back

    def _answer(self) -> Steps[None]:
        symbol = yield from self._spaces()
        while symbol == "{" or (yield from self._text_until(_TAG)):
            symbol = ""
            if (yield from self._attempt(self._call_object())):
                if (yield from self._symbol(";")) and not (yield from self._spaces()):
                    self._held.clear()  # the answer ends with a separator
                symbol = yield from self._spaces()
