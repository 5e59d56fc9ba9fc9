"""An option's number of seconds."""

from __future__ import annotations

import math
from typing import Any

import click

_MAX_SECONDS = 1_000_000
"""Eleven days. Much longer, and clocks overflow: gRPC takes such a deadline for one that is over."""


class Seconds(click.FloatRange):
    """From `least` (or above it, with `above`) to eleven days; no NaN, which is in every range for click."""

    def __init__(self, minimum: float = 0, *, exclusive: bool = False) -> None:
        super().__init__(minimum, _MAX_SECONDS, min_open=exclusive)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return seconds
