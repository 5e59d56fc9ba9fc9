"""Option types for numbers."""

from __future__ import annotations

import math
from typing import Any

import click

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
