"""Tool calls whose arguments are pairs of a name and a text between tags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from inflight.openai_api.tool_calls.json_scanner import JsonScanner
from inflight.openai_api.tool_calls.literal_calls import python_json
from inflight.openai_api.tool_calls.parser import MAX_ARGUMENTS, MAX_NESTING, Steps, ToolCallParser

_MAX_KEY = 256
_KEY_END = re.compile(r'["<>]')
_CDATA = re.compile(r"\s*<!\[CDATA\[(.*)\]\]>\s*", re.DOTALL)
_MAX_PYTHON = 1 << 14


class XmlTags(NamedTuple):
    """`call` name `close` (`key` name `value` text `value_end`)... `end`, within a section."""

    call: str
    close: str
    key: str
    value: str
    value_end: str
    end: str
    sections: tuple[str, ...] = ()
    section_ends: tuple[str, ...] = ()
    lines: bool = False
    """Whether a line end at the beginning and at the end of a text does not belong to it."""


class XmlCallsParser(ToolCallParser):
    """Gives out each argument once it is complete, as the type that the function's schema says.

    A tag within a text ends it only where the format goes on behind it.
    """

    def __init__(self, *args: Any, xml: XmlTags, **options: Any) -> None:
        super().__init__(*args, **options)
        self._xml = xml
        self.tags = "".join((*xml[:6], *xml.sections, *xml.section_ends))
        self.openings = (xml.call, *xml.sections)

    def _answer(self) -> Steps[None]:
        xml = self._xml
        while (yield from self._call_tag(xml.call, *xml.sections)):
            if (yield from self._attempt(self._call())) and xml.section_ends:
                yield from self._end_tags(*xml.section_ends)

    def _call(self) -> Steps[bool]:
        xml = self._xml
        name = yield from self._name()
        if name is None:
            return False
        yield from self._spaces()
        follows = (xml.close,) if xml.close else (xml.key, xml.end)
        if not (yield from self._follows(*follows)):
            return False
        yield from self._tag(xml.close)
        self._begin(name)
        schemas = self._schemas.get(name, {}).get("properties")
        left, opening = MAX_ARGUMENTS, "{"
        while True:
            yield from self._spaces()
            key = text = None
            if (yield from self._tag(xml.key)):
                key = yield from self._until(xml.value, _MAX_KEY)
                text = None if key is None else (yield from self._argument_text(left))
            elif not (yield from self._tag(xml.end)) and not (yield from self._follows(*xml.section_ends)):
                return self._ends_itself(opening)
            else:
                self._give_arguments("{}" if opening == "{" else "}")
                return True
            if key is None or text is None:
                return self._ends_itself(opening)
            self._held.clear()
            left -= len(text)
            key_name = _KEY_END.split(key, 1)[0].strip()
            value = _typed(text, 'string="true"' in key, _schema_of(schemas, key_name))
            self._give_arguments(f"{opening}{json.dumps(key_name, ensure_ascii=False)}: {value}")
            opening = ", "

    def _ends_itself(self, opening: str) -> bool:
        """Complete the arguments of an answer that ended without the tags, and was not cut."""
        if self._ended and not self._cut:
            self._give_arguments("{}" if opening == "{" else "}")
        return False

    def _argument_text(self, limit: int) -> Steps[str | None]:
        xml = self._xml
        parts: list[str] = []
        while (text := (yield from self._until(xml.value_end, limit))) is not None:
            limit -= len(text)
            start = len(self._held)
            yield from self._spaces()
            if (yield from self._follows(xml.key, xml.end, *xml.section_ends)):
                text = "".join((*parts, text))
                if xml.lines:
                    text = text.removeprefix("\n").removesuffix("\n")
                return text
            parts += (text, xml.value_end, *self._held[start:])
        return None

    def _follows(self, *tags: str) -> Steps[bool]:
        """Return whether one of the tags, or the end of the answer, comes next."""
        while True:
            following = self._unread[self._at : self._at + max(map(len, tags), default=0)]
            if any(following.startswith(tag) for tag in tags) or (self._ended and not following):
                return bool(tags)
            if self._ended or not any(tag.startswith(following) for tag in tags):
                return False
            yield


def _schema_of(schemas: Any, key: str) -> Any:
    return schemas.get(key) if isinstance(schemas, Mapping) else None


def _typed(text: str, is_string: bool, schema: Any) -> str:
    """Return a text as JSON of one of the types of a schema: the text as it is if it may be a string and no other."""
    if cdata := _CDATA.fullmatch(text):
        return json.dumps(cdata[1], ensure_ascii=False)
    types = _types(schema)
    value = text.strip()
    kind = None if is_string or types == {"string"} else _kind(value)
    if kind is None and types - {"string"} and len(value) < _MAX_PYTHON:  # some templates show Python's notation
        value = python_json(value) or value
        kind = _kind(value)
    if kind is None or (types and kind not in types and "string" in types):
        return json.dumps(text, ensure_ascii=False)
    return value


def _types(schema: Any) -> set[str]:
    """Return the types that a schema allows; none if it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    types = {named} if isinstance(named, str) else set(filter(_is_text, named)) if isinstance(named, list) else set()
    for choice in ("anyOf", "oneOf"):
        if isinstance(schema.get(choice), list):
            types = types.union(*map(_types, schema[choice]))
    if not types and isinstance(schema.get("enum"), list) and all(map(_is_text, schema["enum"])):
        types = {"string"}
    return types | {"integer"} if "number" in types else types


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _kind(value: str) -> str | None:
    """Return the type of a value in JSON; None if it is none."""
    scanner = JsonScanner(MAX_NESTING)
    end = scanner.scan(value + " ", 0, len(value) + 1)
    if not scanner.complete or end < len(value):
        return None
    names = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}
    return names.get(value[0]) or ("number" if set(value) & set(".eE") else "integer")
