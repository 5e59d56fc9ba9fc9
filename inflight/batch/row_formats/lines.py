"""Common parts of the lines of all row formats, and dead letters."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson

from inflight.batch.job.rows import InvalidRow, RowResult, RowStatus

MAX_ID_CHARACTERS = 512
"""Maximum length in characters."""


def dump_json(values: Any) -> bytes:
    """Return JSON without a line end. Raises orjson.JSONEncodeError for unsupported values."""
    return orjson.dumps(values, _as_json, orjson.OPT_SERIALIZE_NUMPY)


def dead_letter(invalid: InvalidRow) -> RowResult:
    """Return a dead letter: the row's line in the input, and why it was never sent."""
    line = {"line": invalid.line, "id": invalid.id, "code": invalid.code, "message": invalid.message}
    return RowResult(
        invalid.number, invalid.line, invalid.id, RowStatus.DEAD, dump_json(line), invalid.code, invalid.message
    )


_LARGEST_EXACT = 2**53


def parse_id(value: Any) -> str | int | None:
    """Return an id as it is written: a text (also for a UUID) or an integer; None if it is invalid."""
    if isinstance(value, str):
        usable = 0 < len(value) <= MAX_ID_CHARACTERS and "\0" not in value and (value.isascii() or _encodes(value))
        return value if usable else None
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        value = int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) <= _LARGEST_EXACT:
        value = int(value)  # a column of whole numbers with nulls is one of floats in many tools
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64:
        return value
    return None


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _as_json(value: Any) -> Any:
    """Convert values of Parquet's and databases' types that orjson does not support."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    raise TypeError
