"""Tool calls of Mistral."""

from __future__ import annotations

from inflight.openai_api.tool_calls.parser import Steps, ToolCallParser

_TAG = "[TOOL_CALLS]"
_MAX_ID = 64


class MistralParser(ToolCallParser):
    """Reads `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, and the form of tokenizers from version 11 on.

    That is `[TOOL_CALLS]name{...}` or `[TOOL_CALLS]name[ARGS]{...}`, where `[CALL_ID]id` may follow the name.
    At the beginning of an answer and behind a call the tags may be missing, since they are special tokens.
    """

    tags = "[TOOL_CALLS][CALL_ID][ARGS]"
    skipped_keys = frozenset({"type", "id"})  # so that an answer in JSON is not held back

    def _answer(self) -> Steps[None]:
        more, tagged = True, False
        while more:
            symbol = yield from self._spaces()
            while self._room > 0 and (yield from self._tag(_TAG)):
                self._room -= len(_TAG)
                symbol, tagged = (yield from self._spaces()), True
            if (yield from self._symbol("[")):
                more = yield from self._array_of_calls()
            elif symbol == "{" and tagged:
                more = yield from self._attempt(self._call_object())
            else:
                more = yield from self._attempt(self._named_call())
            tagged = False
            if not more:
                more = tagged = bool((yield from self._text_until(_TAG)))

    def _named_call(self) -> Steps[bool]:
        name = yield from self._name()
        if name is None:
            return False
        yield from self._spaces()
        if (yield from self._tag("[CALL_ID]")):
            length = 0
            while length < _MAX_ID and (yield from self._peek()) not in ("", "["):
                length += 1
                self._hold(1)
        yield from self._tag("[ARGS]")
        return (yield from self._arguments(name)) is not None
