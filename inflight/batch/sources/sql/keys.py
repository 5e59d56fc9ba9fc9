"""Converts the values of a table's key to and from JSON for positions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from inflight.batch.errors import BatchError

_READ: dict[str, Callable[[str], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "uuid": UUID,
    "decimal": Decimal,
    "bytes": bytes.fromhex,
}


def key_to_json(values: tuple[Any, ...]) -> list[Any]:
    """Convert key values: numbers and texts unchanged, others as type and text. Raises BatchError `input_invalid`."""
    return [_written(value) for value in values]


def key_from_json(values: list[Any]) -> tuple[Any, ...]:
    """Return what `key_to_json` was given."""
    return tuple(_READ[value[0]](value[1]) if isinstance(value, list) else value for value in values)


def _written(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        raise BatchError(f"a row has the key {value}; name a column without such values with --id", "input_invalid")
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime):
        return ["datetime", value.isoformat()]
    if isinstance(value, date):
        return ["date", value.isoformat()]
    if isinstance(value, UUID | Decimal):
        return [type(value).__name__.lower(), str(value)]
    if isinstance(value, bytes | memoryview):
        return ["bytes", bytes(value).hex()]
    raise BatchError(
        f"a row's key is a {type(value).__name__}; name a column of numbers or texts with --id", "input_invalid"
    )
