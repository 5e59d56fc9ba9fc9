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
