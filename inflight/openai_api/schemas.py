"""Makes JSON schemas ready for grammar compilers: drops what these can't keep, and says what."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_IGNORED = (
    *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "multipleOf", "uniqueItems"),
    *("contains", "minContains", "maxContains"),
)
_UPPER = ("maximum", "exclusiveMaximum", "exclusiveMinimum")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_NESTED = ("additionalProperties", "unevaluatedProperties", "propertyNames", "items", "unevaluatedItems")
_LISTED = ("prefixItems", "anyOf", "oneOf", "allOf")

_CHARACTER = r'([^"\\\x00-\x1f]|\\["\\/bfnrt])'
"""What a JSON string may have: any character but a quote, a backslash or a control character, or one of its escapes."""
_LONGEST = 500
"""Of strings, since a longer limit makes the grammar too large, and of patterns, whose check takes quadratic time."""
_RISKY = re.compile(r'["]|\\\\|\\[nrtfvx]|\\u0|\[(?!\^)[^\]]*\\[DWS]')
"""Parts of a pattern that may match what no JSON string has."""
_OPEN = {".": r'[^"\\\x00-\x1f]', "[^": r'[^"\\\x00-\x1f', r"\D": r'[^0-9"\\\x00-\x1f]'} | {
    r"\W": r'[^A-Za-z0-9_"\\\x00-\x1f]',
    r"\S": r'[^ "\\\x00-\x1f]',
    r"\s": " ",
}
_PART = re.compile(r"\\.|\[\^|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)


def enforceable(schema: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the schema without the keywords that can't be enforced, and their names.

    Compilers write a string's `minLength`, `maxLength` and `pattern` as a text without looking at JSON's own rules, so
    these become a pattern that matches only what a JSON string may have. Raises RecursionError.
    """
    dropped: dict[str, None] = {}
    return _walk(schema, dropped), tuple(dropped)


def _walk(schema: Any, dropped: dict[str, None]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    found = dict(schema)

    def drop(*names: str) -> None:
        for name in names:
            value = found.pop(name, None)
            if value is not None and value is not False:
                dropped[name] = None

    drop(*_IGNORED)
    types = found.get("type")
    kinds = types if isinstance(types, list) else [types]
    if "number" in kinds:
        drop(*_UPPER)
        least = found.get("minimum", 0)
        if isinstance(least, int | float) and (least < 0 or least != int(least)):
            drop("minimum")
    if "string" in kinds:
        _bound_string(found, drop)
    for name in _NAMED:
        if isinstance(inner := found.get(name), Mapping):
            found[name] = {key: _walk(value, dropped) for key, value in inner.items()}
    for name in _NESTED:
        if name in found:
            found[name] = _walk(found[name], dropped)
    for name in _LISTED:
        if isinstance(listed := found.get(name), list):
            found[name] = [_walk(value, dropped) for value in listed]
    return found


def _bound_string(found: dict[str, Any], drop: Any) -> None:
    pattern = found.get("pattern")
    if isinstance(pattern, str):
        drop("minLength", "maxLength", "format")
        if len(pattern) > _LONGEST or _RISKY.search(pattern):
            drop("pattern")
        else:
            found["pattern"] = _PART.sub(lambda part: _OPEN.get(part[0], part[0]), pattern)
        return
    least, most = found.get("minLength", 0), found.get("maxLength")
    if "format" in found or not ({"minLength", "maxLength"} & found.keys()):
        return
    if type(least) is not int or least < 0 or not (most is None or (type(most) is int and most >= least)):
        return  # the compiler says what is wrong
    if max(least, most or 0) > _LONGEST:
        drop("minLength", "maxLength")
        return
    found.pop("minLength", None), found.pop("maxLength", None)
    found["pattern"] = f"^{_CHARACTER}{{{least},{'' if most is None else most}}}$"
