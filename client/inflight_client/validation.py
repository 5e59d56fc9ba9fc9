"""Validation of a caller's values: an error names the invalid value and what it must be."""

from __future__ import annotations

import math
from numbers import Integral, Real
from reprlib import Repr
from typing import Any

from inflight_client.errors import InflightError

_CUT = Repr()
_CUT.maxlevel, _CUT.maxdict, _CUT.maxlist, _CUT.maxtuple, _CUT.maxstring, _CUT.maxlong = 3, 10, 10, 10, 60, 60

MAX_SECONDS = 366 * 24 * 3600
"""A year; beyond that, clocks and timers of libraries overflow."""


def invalid_value(name: str, value: Any, expected: str) -> InflightError:
    return InflightError(f"{name} is {shorten(value)}; it must be {expected}", "invalid_parameter")


def shorten(value: Any) -> str:
    """Return a value as one short line for a message."""
    try:
        if isinstance(value, str | bytes):
            text = repr(value[:60])
        elif isinstance(value, dict) and len(value) > 10:
            text = f"an object of {len(value)} fields"
        else:
            text = _CUT.repr(value) if isinstance(value, dict | list | tuple) else str(value)
    except Exception:  # a caller's class may raise anything, and so does a number of thousands of digits
        text = f"a {type(value).__name__}"
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def check_int(name: str, value: Any, low: int, high: int) -> None:
    """Raise InflightError unless the value is a whole number within bounds; numpy's are accepted, booleans are not."""
    if not is_int(value) or not low <= int(value) <= high:
        raise invalid_value(name, value, f"a whole number from {low} to {high}")


def is_int(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def within(value: Any, low: float, high: float) -> bool:
    """Return whether the value is a number within bounds. numpy's are accepted, NaN and booleans are not."""
    if is_int(value):  # the highest seed does not fit a float
        return low <= int(value) <= high
    if not is_number(value):
        return False
    try:
        return low <= float(value) <= high
    except OverflowError:
        return False


def check_number(name: str, value: Any, low: float, high: float = math.inf) -> None:
    """Raise InflightError unless the value is a finite number within bounds."""
    if not within(value, low, high) or value == math.inf:
        expected = f"{low:.15g} or more" if math.isinf(high) else f"{low:.15g} to {high:.15g}"
        raise invalid_value(name, value, f"a number, {expected}")


def check_timeout(name: str, value: Any) -> None:
    """Raise InflightError unless the value is a timeout in seconds or None."""
    if value is not None and not (within(value, 0, MAX_SECONDS) and value > 0):
        raise invalid_value(name, value, f"a number of seconds above 0 and at most {MAX_SECONDS} (a year), or None")


def check_utf8(name: str, text: str) -> None:
    """Raise InflightError for text that can't be encoded as UTF-8, such as a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InflightError(f"{name} can't be encoded as UTF-8: {error.reason}", "invalid_text") from None
