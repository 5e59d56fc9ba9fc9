"""An option type for a number of seconds."""

from __future__ import annotations

import math
from typing import Any

import click

_MAX_SECONDS = 1_000_000
"""Eleven days. gRPC's clock overflows for much longer deadlines and treats them as expired."""


class Seconds(click.FloatRange):
    """Seconds from `minimum` (exclusive with `exclusive`) to eleven days; rejects NaN, which click accepts in any
    range."""

    def __init__(self, minimum: float = 0, *, exclusive: bool = False) -> None:
        super().__init__(minimum, _MAX_SECONDS, min_open=exclusive)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds
