"""Values that a caller gave, checked: a wrong one is named, with what it must be, before anything is sent."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from inflight_client.errors import InflightError

MAX_SECONDS = 366 * 24 * 3600
"""A year: beyond that, clocks and timers of the libraries below overflow, some at once."""


def invalid_value(name: str, value: Any, wanted: str) -> InflightError:
    return InflightError(f"{name} is {shorten(value)}; it must be {wanted}", "invalid_parameter")


def shorten(value: Any) -> str:
    """A value as a message may have it: one short line."""
    try:
        text = repr(value) if isinstance(value, str | bytes) else str(value)
    except Exception:  # whatever a caller's own class does, or a number of thousands of digits
        text = f"a {type(value).__name__}"
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def check_int(name: str, value: Any, low: int, high: int) -> None:
    """A whole number within bounds, numpy's too; True and False are none."""
    if not is_int(value) or not low <= int(value) <= high:
        raise invalid_value(name, value, f"a whole number from {low} to {high}")


def is_int(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def within(value: Any, low: float, high: float) -> bool:
    """Whether it is a number within bounds, numpy's too. NaN is within none, and True is no number."""
    if is_int(value):  # the highest seed is no float
        return low <= int(value) <= high
    if not is_number(value):
        return False
    try:
        return low <= float(value) <= high
    except OverflowError:
        return False


def check_number(name: str, value: Any, low: float, high: float = math.inf) -> None:
    """A number within bounds; an infinite one only where `high` is."""
    if not within(value, low, high) or value == math.inf:
        wanted = f"{low:.15g} or more" if math.isinf(high) else f"{low:.15g} to {high:.15g}"
        raise invalid_value(name, value, f"a number, {wanted}")


def check_timeout(name: str, value: Any) -> None:
    """A time to wait at most, or None for no such limit."""
    if value is not None and not (within(value, 0, MAX_SECONDS) and value > 0):
        raise invalid_value(name, value, f"a number of seconds above 0 and at most {MAX_SECONDS} (a year), or None")


def check_utf8(name: str, text: str) -> None:
    """Text that can be sent: a lone half of a surrogate pair can't."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InflightError(f"{name} can't be encoded as UTF-8: {error.reason}", "invalid_text") from None
