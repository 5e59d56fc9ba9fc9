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
_DATA = ("const", "enum", "default", "example", "examples")
_LISTED = ("prefixItems", "anyOf", "oneOf", "allOf")

_CHARACTER = r'([^"\\\x00-\x1f]|\\["\\/bfnrt])'
"""What a JSON string may have: any character but a quote, a backslash or a control character, or one of its escapes."""
_LONGEST = 500
"""Of strings, since a longer limit makes the grammar too large, and of patterns, whose check takes quadratic time."""
_FORBIDDEN = [chr(code) for code in range(32)] + ['"', "\\"]
_OPEN = {".": r'[^"\\\x00-\x1f]', r"\D": r'[^0-9"\\\x00-\x1f]', r"\W": r'[^A-Za-z0-9_"\\\x00-\x1f]'} | {
    r"\S": r'[^ "\\\x00-\x1f]',
    r"\s": " ",
}
"""Parts of a pattern that match too much, and what they become."""
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_CHOSEN = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""Beside these, compilers look at no limit of a string."""


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
    kept = dict(schema)

    def drop(*names: str) -> None:
        for name in names:
            value = kept.pop(name, None)
            if value is not None and value is not False:
                dropped[name] = None

    drop(*_IGNORED)
    types = kept.get("type")
    kinds = types if isinstance(types, list) else [types]
    if "number" in kinds:
        drop(*_UPPER)
        least = kept.get("minimum", 0)
        if isinstance(least, int | float) and (least < 0 or least != int(least)):
            drop("minimum")
    if "string" in kinds and not any(name in kept for name in _CHOSEN):
        _bound_string(kept, drop)
    for name, value in kept.items():
        if name in _NAMED and isinstance(value, Mapping):
            kept[name] = {key: _walk(each, dropped) for key, each in value.items()}
        elif name in _LISTED and isinstance(value, list):
            kept[name] = [_walk(each, dropped) for each in value]
        elif name not in _DATA:  # also names that a $ref may lead to
            kept[name] = _walk(value, dropped)
    return kept


def _bound_string(kept: dict[str, Any], drop: Any) -> None:
    pattern = kept.get("pattern")
    if isinstance(pattern, str):
        drop("minLength", "maxLength", "format")
        if (safe := _safe_pattern(pattern)) is None:
            drop("pattern")
        else:
            kept["pattern"] = safe
        return
    if "format" in kept:
        drop("minLength", "maxLength")
        return
    least, most = kept.get("minLength", 0), kept.get("maxLength")
    if not ({"minLength", "maxLength"} & kept.keys()):
        return
    if type(least) is not int or least < 0 or not (most is None or (type(most) is int and most >= least)):
        return  # the compiler says what is wrong
    if max(least, most or 0) > _LONGEST:
        drop("minLength", "maxLength")
        return
    kept.pop("minLength", None), kept.pop("maxLength", None)
    kept["pattern"] = f"^{_CHARACTER}{{{least},{'' if most is None else most}}}$"


def _safe_pattern(pattern: str) -> str | None:
    """Return a pattern that matches only what a JSON string may have as it is; None if that is not known to work."""
    if len(pattern) > _LONGEST:
        return None
    parts = []
    for match in _PART.finditer(pattern):
        part = match[0]
        if part in _OPEN:
            part = _OPEN[part]
        elif part.startswith("[^") and len(part) > 2:
            part = r'[^"\\\x00-\x1f' + part[2:]
        elif _may_match_forbidden(part):
            return None
        parts.append(part)
    return "".join(parts)


def _may_match_forbidden(part: str) -> bool:
    if part in ("(", ")", "*", "+", "?", "|", "{", "}", "^", "$", "["):
        return part == "["  # a class that does not end
    try:
        return any(re.fullmatch(part, each) for each in _FORBIDDEN)
    except re.error:
        return True
