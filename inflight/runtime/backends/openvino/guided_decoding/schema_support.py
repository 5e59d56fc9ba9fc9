"""Finds what a JSON Schema demands and the grammar compiler (xgrammar) would ignore, or translate wrongly.

The compiler takes the first of `$ref`, `const`, `enum`, `anyOf`, `oneOf`, `allOf` and `type` that a schema has, and
drops the rest with a line in the log: an answer could violate the schema without anyone noticing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

_IGNORED = (
    *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"),
    *("$dynamicRef", "$recursiveRef"),
    *("multipleOf", "uniqueItems", "contains", "minContains", "maxContains"),
)
_LENGTH = ("minLength", "maxLength", "format")
_UPPER = ("maximum", "exclusiveMaximum", "exclusiveMinimum")
_OBJECT = ("properties", "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames")
_ARRAY = ("items", "prefixItems", "unevaluatedItems")
_LIMITS = (
    *("required", "minProperties", "maxProperties", "minItems", "maxItems"),
    *("pattern", *_LENGTH, "minimum", *_UPPER),
)
_ASSERTIONS = (*_OBJECT, *_ARRAY, *_LIMITS)
_FIRST = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""In the compiler's order."""
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_NESTED = ("additionalProperties", "unevaluatedProperties", "propertyNames", "items", "unevaluatedItems")
_LISTED = ("prefixItems", "anyOf", "oneOf", "allOf")


def find_unsupported(schema: Any) -> str:
    """Return the first keyword that the engine can't enforce, with its place and the reason; empty if there is none."""
    rest, followed = [("", schema)], set()
    while rest:
        place, one = rest.pop()
        if not isinstance(one, Mapping):
            continue
        if found := _unsupported(one):
            return f"has {found} at {place or '/'}"
        reference = one.get("$ref")
        if isinstance(reference, str) and reference not in followed:
            followed.add(reference)
            target = _target(schema, reference)
            if target is None:
                return f"has a $ref that leads nowhere at {place or '/'}"
            rest.append((reference, target))
        for name in _NAMED:
            if isinstance(inner := one.get(name), Mapping):
                rest += [(f"{place}/{name}/{key}", value) for key, value in inner.items()]
        rest += [(f"{place}/{name}", one[name]) for name in _NESTED if name in one]
        for name in _LISTED:
            if isinstance(listed := one.get(name), list):
                rest += [(f"{place}/{name}/{index}", value) for index, value in enumerate(listed)]
    return ""


def _target(schema: Any, reference: str) -> Any:
    """Return what a reference within the schema leads to; None if there is nothing."""
    found = schema
    if reference != "#" and not reference.startswith("#/"):
        return None  # the name of an anchor, which the compiler ignores
    for part in reference.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(name)
        elif isinstance(found, list) and name.isascii() and name.isdigit() and len(name) < 6:
            found = found[int(name)] if int(name) < len(found) else None
        else:
            return None
    return found


def _unsupported(schema: Mapping[str, Any]) -> str:
    for name in _IGNORED:
        if schema.get(name) not in (None, False):
            return f"{name}, which can't be enforced,"
    first = next((name for name in _FIRST if name in schema), None)
    if first is not None:
        return _beside(schema, first)
    types = schema.get("type")
    if types is None:
        limit = next((name for name in _LIMITS if name in schema), None)
        if limit and not any(name in schema for name in (*_OBJECT, *_ARRAY)):
            return f"{limit} without type"
    if "pattern" in schema and any(name in schema for name in _LENGTH):
        return f"pattern beside {next(name for name in _LENGTH if name in schema)}"
    if "minimum" in schema and "exclusiveMinimum" in schema:
        return "minimum beside exclusiveMinimum"
    if types == "number" or (isinstance(types, list) and "number" in types):
        return _number_bounds(schema) or _names(schema)
    return _names(schema)


def _beside(schema: Mapping[str, Any], first: str) -> str:
    """Return what is ignored because of the keyword that the compiler takes."""
    value = schema[first]
    if first == "$ref" and not (isinstance(value, str) and value.startswith("#")):
        return "a $ref to another document"
    if first == "allOf" and isinstance(value, list) and len(value) > 1:
        return "allOf with several schemas"
    for name in (*_FIRST, *_ASSERTIONS):
        if name in schema and name != first:
            return f"{name} beside {first}"
    if "type" not in schema or first not in ("anyOf", "oneOf", "allOf") or not isinstance(value, list):
        return ""
    same = all(isinstance(each, Mapping) and each.get("type", "") == schema["type"] for each in value)
    return "" if same else f"type beside {first}; give each of its schemas the type,"


def _number_bounds(schema: Mapping[str, Any]) -> str:
    """Return the bound of a number with a fraction that can't be kept; a lower one of 0 and more can."""
    if bound := next((name for name in _UPPER if name in schema), None):
        return f"{bound} of a number, which can't be enforced (of an integer it can),"
    minimum = schema.get("minimum", 0)
    if isinstance(minimum, int | float) and (minimum < 0 or minimum != int(minimum)):
        return "a minimum of a number that is negative or has a fraction"
    return ""


def _names(schema: Mapping[str, Any]) -> str:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    for name in ("patternProperties", "propertyNames"):
        others = ("properties", "required", *(("additionalProperties",) if name == "propertyNames" else ()))
        for other in others:
            if name in schema and schema.get(other) not in (None, True, False, [], {}):
                return f"{other} beside {name}"
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return ""
    missing = next((each for each in required if isinstance(each, str) and each not in properties), "")
    return f"{missing[:40]!r} in required, which properties doesn't describe," if missing else ""
