"""Schemas as grammar compilers can keep them: what is dropped, and that strings stay strings of JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from inflight.openai_api.schemas import enforceable


@pytest.mark.parametrize(
    ("schema", "kept", "dropped"),
    [
        ({"type": "number", "minimum": 0, "maximum": 1}, {"type": "number", "minimum": 0}, ("maximum",)),
        ({"type": "number", "minimum": -0.5}, {"type": "number"}, ("minimum",)),
        ({"type": ["number", "null"], "exclusiveMinimum": 0}, {"type": ["number", "null"]}, ("exclusiveMinimum",)),
        ({"type": "integer", "minimum": 1, "maximum": 9}, {"type": "integer", "minimum": 1, "maximum": 9}, ()),
        ({"type": "array", "items": {"type": "number", "multipleOf": 0.5}}, None, ("multipleOf",)),
        ({"properties": {"maximum": {"type": "string", "format": "date"}}}, None, ()),
        ({"anyOf": [{"not": {}}, {"type": "null"}]}, None, ("not",)),
        ({"type": "array", "uniqueItems": False}, {"type": "array"}, ()),
        ({"type": "string", "pattern": "^[a-c]+$", "minLength": 2}, None, ("minLength",)),
        ({"type": "string", "pattern": '^"$'}, {"type": "string"}, ("pattern",)),
        ({"type": "string", "pattern": "[" * 60_000}, {"type": "string"}, ("pattern",)),
        ({"type": "string", "maxLength": 10**6}, {"type": "string"}, ("maxLength",)),
        ({"type": "string", "minLength": "2"}, {"type": "string", "minLength": "2"}, ()),
        ({"type": "string", "format": "phone", "maxLength": 4}, {"type": "string", "format": "phone"}, ("maxLength",)),
        ({"type": "string", "enum": ["a"], "maxLength": 4}, {"type": "string", "enum": ["a"], "maxLength": 4}, ()),
        (True, True, ()),
    ],
)
def test_what_can_not_be_enforced_is_dropped_by_name(schema: Any, kept: Any, dropped: tuple[str, ...]) -> None:
    before = json.dumps(schema)
    found, names = enforceable(schema)
    assert names == dropped
    assert kept is None or found == kept
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    "pattern", [r"^[\w\s]{1,6}$", "^[ -~]{1,6}$", "^[A-z]+$", "[!-/]", "a\nb", r"a\n", r"\x22", "[a"]
)
def test_patterns_that_may_match_what_no_string_of_json_has_are_dropped(pattern: str) -> None:
    assert enforceable({"type": "string", "pattern": pattern}) == ({"type": "string"}, ("pattern",))


@pytest.mark.parametrize(("text", "matches"), [("abc", True), ("a.c", False), ("abcdefg", False)])
def test_a_class_keeps_its_meaning(text: str, matches: bool) -> None:
    found, _ = enforceable({"type": "string", "pattern": "^[^.]{1,6}$"})
    assert bool(re.search(found["pattern"], text)) == matches


def test_schemas_are_found_wherever_a_reference_may_lead() -> None:
    schema = {"$ref": "#/components/X", "components": {"X": {"type": "number", "maximum": 1}}, "default": {"not": 1}}
    found, names = enforceable(schema)
    assert (found["components"]["X"], found["default"], names) == ({"type": "number"}, {"not": 1}, ("maximum",))


@pytest.mark.parametrize(
    "limits",
    [{"maxLength": 4}, {"minLength": 1}, {"minLength": 1, "maxLength": 4}]
    + [{"pattern": each} for each in ("^[^x]{1,4}$", "^.{1,4}$", r"^\D\S?$", r"^\W{0,3}$", r"^\.+$", r"^[\w.]+$")]
    + [{"pattern": each} for each in ("^[^.]{1,6}$", r"^[^@\s.]+@[^@\s.]+$", r"^(a|b)?[^\W]*$")],
)
def test_strings_within_limits_are_strings_of_json(limits: dict[str, Any]) -> None:
    found, _ = enforceable({"type": "string", **limits})
    pattern = re.compile(found["pattern"].replace("$", r"\Z"))
    for text in ["a", "é", "..", "ab ", "🍵", *map(chr, range(32)), '"', "\\", 'a"b', "a\\", "\\n", '\\"']:
        if pattern.search(text):
            assert isinstance(json.loads(f'"{text}"'), str)
    if "maxLength" in limits:
        assert pattern.search("abcd")
        assert not pattern.search("abcde")
    if "minLength" in limits:
        assert not pattern.search("")
