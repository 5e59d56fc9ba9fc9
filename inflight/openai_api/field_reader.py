"""Reads the fields of a request's body by the tables of fields.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight_client.validation import is_int, shorten

from inflight.common.suggestions import nearest
from inflight.openai_api.errors import ApiError
from inflight.openai_api.fields import Field, Tier

_LARGEST_EXACT = 2**53
_REQUIRED = ("messages", "prompt", "input", "documents", "query")
"""By all requests that have a field of that name."""


def read_body(body: Any, table: Mapping[str, Field]) -> FieldReader:
    """Return the fields of a body that are not null, and the names of those without effect. Raises ApiError."""
    if not isinstance(body, Mapping):
        raise ApiError(f"the body is {shorten(body)}; it must be a JSON object", "invalid_request")
    values: dict[str, Any] = {}
    no_effect = []
    for name, value in body.items():
        if value is None:
            continue
        field = table.get(name)
        if field is None:
            raise _unknown(name, body, table)
        if field.tier is Tier.HONOURED:
            values[name] = whole(value)
        elif field.tier is Tier.NO_EFFECT:
            no_effect.append(name)
        elif not any(_same(value, each) for each in field.neutral):
            raise ApiError(
                f"{name} is {shorten(value)}, which is not supported ({field.note}); leave it out",
                "unsupported_input",
                name,
            )
    return FieldReader(values, table, tuple(no_effect))


def _unknown(name: str, body: Mapping[str, Any], table: Mapping[str, Field]) -> ApiError:
    near = nearest(name[:80], (each for each in table if table[each].tier is not Tier.REFUSED), 0.7)
    required = (each for each in _REQUIRED if each in table and table[each].tier is Tier.HONOURED)
    missing = next((each for each in required if body.get(each) is None), None)
    if missing is not None and near in (None, missing):
        return ApiError(
            f"the request has no {missing}, and its field {name[:80]!r} is unknown; rename it to {missing}",
            "invalid_request",
            missing,
        )
    step = f"did you mean {near!r}?" if near else "leave it out"
    return ApiError(f"the field {name[:80]!r} is unknown; {step}", "unsupported_input", name[:80])


def whole(value: Any) -> Any:
    """Return a whole number that was written as a float, which JSON does not tell apart, as an integer."""
    return int(value) if type(value) is float and value.is_integer() and abs(value) <= _LARGEST_EXACT else value


def _same(value: Any, neutral: Any) -> bool:
    if isinstance(value, bool) or isinstance(neutral, bool):
        return value is neutral
    return bool(value == neutral) and (isinstance(value, int | float) or type(value) is type(neutral))


class FieldReader:
    """Reads fields of simple types, with the bounds of their table. Raises ApiError, which names the field."""

    def __init__(self, values: Mapping[str, Any], table: Mapping[str, Field], no_effect: tuple[str, ...] = ()) -> None:
        self.values, self.no_effect = values, no_effect
        self._table = table

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str) or not value:
            what = f"the request has no {name}" if value is None else f"{name} is {shorten(value)}"
            raise ApiError(f"{what}; set it to a text", "invalid_request", name)
        return value

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise _invalid(name, value, "true or false")
        return value

    def integer(self, name: str) -> int | None:
        value, bounds = self.values.get(name), self._table[name].schema
        low, high = bounds["minimum"], bounds["maximum"]
        if value is not None and not (is_int(value) and low <= value <= high):
            raise _invalid(name, value, f"a whole number from {low} to {high}")
        return value

    def choice(self, name: str, default: str) -> str:
        value, names = self.values.get(name, default), self._table[name].schema["enum"]
        if value not in names:
            raise _invalid(name, value, " or ".join(names) if len(names) == 2 else f"one of {', '.join(names)}")
        return str(value)

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.values.get(name, {})
        if not isinstance(value, Mapping):
            raise _invalid(name, value, "an object")
        return value


def _invalid(name: str, value: Any, what: str) -> ApiError:
    return ApiError(f"{name} is {shorten(value)}; it must be {what}", "invalid_parameter", name)
