"""What is the same in the lines of every form: how they are written, and those of the dead letters."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson

from inflight.batch.job.rows import InvalidRow, RowResult, RowStatus

MAX_ID_CHARACTERS = 512
"""Characters."""


def dump_json(values: Any) -> bytes:
    """JSON without the line's end. Raises orjson.JSONEncodeError for what it can't hold."""
    return orjson.dumps(values, _as_json)


def dead_letter(invalid: InvalidRow) -> RowResult:
    """A line of the dead letters: where the row stands, and why it was never asked."""
    line = {"line": invalid.line, "id": invalid.id, "code": invalid.code, "message": invalid.message}
    return RowResult(
        invalid.number, invalid.line, invalid.id, RowStatus.DEAD, dump_json(line), invalid.code, invalid.message
    )


def parse_id(value: Any) -> str | int | None:
    """An id as it is written: a text (a UUID is one), or a whole number; None for what is none."""
    if isinstance(value, str):
        usable = 0 < len(value) <= MAX_ID_CHARACTERS and "\0" not in value and (value.isascii() or _encodes(value))
        return value if usable else None
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        value = int(value)
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
    """What orjson does not write by itself: values of Parquet's and databases' own types."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    raise TypeError
