"""Tool calls in the notation of a language: Python's, or that of Gemma 4."""

from __future__ import annotations

import ast
import json
import re
import warnings
from typing import Any

from inflight.openai_api.tool_calls.json_scanner import JsonScanner
from inflight.openai_api.tool_calls.parser import MAX_NESTING, Steps, ToolCallParser

MAX_LITERAL = 1 << 17
"""Characters of one call, which is read once it is complete."""
_CONSTANTS = {"true": True, "false": False, "null": None}

_GEMMA_END = "<tool_call|>"
_QUOTE = '<|"|>'
_NONE = re.compile(r"(?<=[:,\[])None\b")  # which Gemma's template writes
_KEY = re.compile(r'([{,]\s*)([^\s"{}\[\],:]+)(?=\s*:)')


class PythonCallsParser(ToolCallParser):
    """Reads `[f(city="Bern"), g()]` at the beginning of an answer, or between tags anywhere."""

    def __init__(self, *args: Any, starts: tuple[str, ...], ends: tuple[str, ...], **options: Any) -> None:
        super().__init__(*args, **options)
        self._starts, self._ends = starts, ends
        self.tags = "".join((*starts, *ends))
        self.openings = starts

    def _answer(self) -> Steps[None]:
        symbol = yield from self._spaces()
        while symbol == "[" or (yield from self._text_until(*self._starts)):
            symbol = ""
            if not (yield from self._symbol("[")):
                self._release()
            elif (yield from self._list()):
                yield from self._end_tags(*self._ends)

    def _list(self) -> Steps[bool]:
        """Read calls up to a bracket, which a model may forget behind the last of them."""
        while (yield from self._attempt(self._call())):
            if (yield from self._symbol(",]")) != ",":
                self._held.clear()
                return True
        return False

    def _call(self) -> Steps[bool]:
        yield from self._spaces()
        name = yield from self._name()
        if name is None or not (yield from self._tag("(")):
            return False
        text = yield from self._up_to_parenthesis()
        arguments = None if text is None else python_json(f"f({text}\n)")
        if arguments is None:
            return False
        self._begin(name)
        self._give_arguments(arguments)
        return True

    def _up_to_parenthesis(self) -> Steps[str | None]:
        text: list[str] = []
        depth, quote = 1, ""
        for _ in range(MAX_LITERAL):
            symbol = yield from self._peek()
            self._hold(1)
            if not symbol or depth > MAX_NESTING:
                return None
            if quote and symbol == "\\":
                symbol += yield from self._peek()
                self._hold(1)
            elif quote:
                quote = "" if symbol == quote else quote
            elif symbol in "\"'":
                quote = symbol
            else:
                depth += (symbol in "([{") - (symbol in ")]}")
                if not depth:
                    return "".join(text)
            text.append("\\n" if quote and symbol == "\n" else symbol)
        return None


class GemmaCallsParser(ToolCallParser):
    """Reads `<|tool_call>call:f{city:<|"|>Bern<|"|>}<tool_call|>`."""

    tags = f"<|tool_call>{_QUOTE}<tool_call|>"
    openings = ("<|tool_call>",)

    def _answer(self) -> Steps[None]:
        while (yield from self._text_until(*self.openings)):
            yield from self._attempt(self._call())

    def _call(self) -> Steps[bool]:
        yield from self._tag("call:")
        name = yield from self._name()
        if name is None:
            return False
        parts = list[str]()
        quotes, left = 0, MAX_LITERAL
        while quotes % 2 or not parts:  # an end within a text is none
            part = yield from self._until(_GEMMA_END, left)
            if part is None:
                return False
            quotes += part.count(_QUOTE)
            left -= len(part)
            parts.append(part)
        arguments = _gemma_arguments(_GEMMA_END.join(parts))
        if arguments is None:
            return False
        self._begin(name)
        self._give_arguments(arguments)
        return True


def python_json(text: str) -> str | None:
    """Return a literal of Python, or the named arguments of a call `f(...)`, as JSON; None if it is neither."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of a backslash that escapes nothing
            tree = _Constants().visit(ast.parse(text, mode="eval").body)
        if not isinstance(tree, ast.Call):
            value = ast.literal_eval(tree)
        elif tree.args or not all(each.arg for each in tree.keywords):
            return None
        else:
            value = {each.arg: ast.literal_eval(each.value) for each in tree.keywords}
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
        # A character that is escaped as two surrogates becomes one, and half a character U+FFFD.
        return written.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None


class _Constants(ast.NodeTransformer):
    """Takes JSON's names of constants for Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_CONSTANTS[node.id]) if node.id in _CONSTANTS else node


def _gemma_arguments(text: str) -> str | None:
    pieces = text.split(_QUOTE)
    pieces[::2] = (_NONE.sub("null", _KEY.sub(r'\1"\2"', piece)) for piece in pieces[::2])
    pieces[1::2] = (json.dumps(piece, ensure_ascii=False) for piece in pieces[1::2])
    value = "".join(pieces).strip()
    scanner = JsonScanner(MAX_NESTING)
    whole = value.startswith("{") and scanner.scan(value, 0, len(value)) == len(value)
    return value if whole and scanner.complete else None
