"""Common parts of the lines of all row formats, and dead letters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any
from uuid import UUID

import orjson
from pydantic import TypeAdapter

from inflight.batch.job.rows import InvalidRow, Row, RowResult, RowStatus

_DURATION = TypeAdapter(timedelta)
MAX_ID_CHARACTERS = 512
"""Maximum length in characters."""


def dump_json(values: Any) -> bytes:
    """Return JSON without a line end. Raises orjson.JSONEncodeError for unsupported values."""
    return orjson.dumps(values, to_json, orjson.OPT_SERIALIZE_NUMPY)


def to_json(value: Any) -> Any:
    """Convert a value of Parquet or a database to JSON: what JSON lacks becomes a text (binary values: hexadecimal)."""
    if isinstance(value, float):
        return value if isfinite(value) else str(Decimal(value))
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(name): to_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    if hasattr(value, "isoformat"):  # dates and times, and durations of pandas
        return value.isoformat()
    return _DURATION.dump_python(value, mode="json") if isinstance(value, timedelta) else str(value)


_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def decode_binary(value: Any) -> Any:
    """Return a value with texts in place of binary values that are UTF-8, as some programs write texts.

    Numbers and UUIDs in binary may be UTF-8 by chance, but have control characters.
    """
    if isinstance(value, bytes | memoryview):
        try:
            text = bytes(value).decode()
        except UnicodeDecodeError:
            return value
        return value if _CONTROL.search(text) else text
    if isinstance(value, Mapping):
        return {name: decode_binary(each) for name, each in value.items()}
    return [decode_binary(each) for each in value] if isinstance(value, list | tuple) else value


def dead_letter(row: Row | InvalidRow, code: str, message: str, attempts: int = 0) -> RowResult:
    """Return a dead letter: the row's line in the input, and why it was never sent, or must not be sent again."""
    line = {"line": row.line, "id": row.id, "code": code, "message": message}
    return RowResult.of(row, RowStatus.DEAD, dump_json(line), code=code, message=message, attempts=attempts)


def column_names(values: Mapping[str, Any]) -> str:
    """Return the names of a row's values for a message."""
    return ", ".join(map(str, list(values)[:20]))[:200]


_LARGEST_EXACT = 2**53
_UNUSABLE = re.compile("[\0\ud800-\udfff]")
"""NUL, and surrogates, which UTF-8 lacks."""


def parse_id(value: Any) -> str | int | None:
    """Return an id as it is written: a text (also for a UUID, a date and binary values) or an integer; None if it is
    invalid."""
    if isinstance(value, str):
        usable = 0 < len(value) <= MAX_ID_CHARACTERS and _UNUSABLE.search(value) is None
        return value if usable else None
    if isinstance(value, UUID | date | bytes | memoryview):
        return str(to_json(value))
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        value = int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) <= _LARGEST_EXACT:
        value = int(value)  # a column of whole numbers with nulls is one of floats in many tools
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64:
        return value
    return None
