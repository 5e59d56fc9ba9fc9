"""Option types for numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import click

from build_engines.errors import BuildError

_MAX_SECONDS = 1_000_000
"""Eleven days. gRPC's clock overflows for much longer deadlines and treats them as expired."""


class Number(click.FloatRange):
    """A number in a range; rejects NaN, which click accepts in any range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


class Seconds(Number):
    """Seconds from `minimum` (exclusive with `exclusive`) to eleven days."""

    def __init__(self, minimum: float = 0, *, exclusive: bool = False) -> None:
        super().__init__(minimum, _MAX_SECONDS, min_open=exclusive)


class Ratio(Number):
    """How many times as long: 1 to 1,000, or 0 for any time."""

    def __init__(self) -> None:
        super().__init__(0, 1000)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        ratio = super().convert(value, param, ctx)
        if 0 < ratio < 1:
            self.fail(f"{value} is not 0, and not a number of 1 or more.", param, ctx)
        return ratio


class ParsedValue(click.ParamType[Any]):
    """A value that `read` parses; one that it rejects is a usage error."""

    def __init__(self, name: str, read: Callable[[str], object]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> object:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except (BuildError, ValueError) as error:
            self.fail(str(error), param, ctx)


def duration(text: str) -> float:
    """Return the seconds of "90", "90s", "10m" or "2h", at most eleven days. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else -1.0
    if not 0 <= seconds <= _MAX_SECONDS:
        raise ValueError(f"{text!r} is not a time of at most eleven days; write it as 90s, 10m or 2h.")
    return seconds
