"""What is the same in the lines of every form: how they are written, and those of the dead letters."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson

from inflight.batch.row import Fault, Kind, Outcome

LONGEST_ID = 512
"""Characters."""


def written(values: Any) -> bytes:
    """JSON without the line's end. Raises orjson.JSONEncodeError for what it can't hold."""
    return orjson.dumps(values, _as_json)


def dead(fault: Fault) -> Outcome:
    """A line of the dead letters: where the row stands, and why it was never asked."""
    line = {"line": fault.line, "id": fault.id, "code": fault.code, "message": fault.message}
    return Outcome(fault.number, fault.line, fault.id, Kind.DEAD, written(line), fault.code, fault.message)


def id_of(value: Any) -> str | int | None:
    """An id as it is written: a text (a UUID is one), or a whole number; None for what is none."""
    if isinstance(value, str):
        usable = 0 < len(value) <= LONGEST_ID and "\0" not in value and (value.isascii() or _encodes(value))
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
