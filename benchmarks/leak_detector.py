"""Distinguishes a leak from noise: the growth of a series of memory measurements, independent of outliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

_WINDOW = 0.15
"""Fraction of the measurements whose median is the start, and the end."""


class Measurement(NamedTuple):
    """Bytes in use at a time, in seconds from any origin."""

    seconds: float
    size: float


@dataclass(frozen=True)
class Growth:
    """Growth from the start of a series to its end, as a fraction of its start.

    `windows` compares the medians of the first and the last measurements, so it also detects a sudden step. `trend`
    follows the median of the slopes between all pairs of measurements (Theil, 1950; Sen, 1968), so up to 29% of
    outliers change nothing.
    """

    begin: float
    end: float
    windows: float
    trend: float

    @property
    def fraction(self) -> float:
        """The larger of both: a leak escapes at most one of them."""
        return max(self.windows, self.trend)

    def exceeds(self, bound: float) -> bool:
        return self.fraction >= bound


def growth(measurements: Sequence[Measurement], warm_up_seconds: float = 0.0) -> Growth:
    """Return how much a series grew after its first `warm_up_seconds`. Raises ValueError for fewer than ten
    measurements."""
    from scipy.stats import theilslopes  # a heavy import

    start = measurements[0].seconds + warm_up_seconds if measurements else 0.0
    rest = [one for one in measurements if one.seconds >= start]
    if len(rest) < 10:
        raise ValueError(f"{len(rest)} measurements after the warm-up are too few to detect a leak; take at least 10")
    window = max(3, round(len(rest) * _WINDOW))
    begin = float(np.median([one.size for one in rest[:window]]))
    end = float(np.median([one.size for one in rest[-window:]]))
    slope, level, *_ = theilslopes(
        [one.size for one in rest], [one.seconds - rest[0].seconds for one in rest], method="joint"
    )
    trend = float(slope * (rest[-1].seconds - rest[0].seconds) / level)
    return Growth(begin, end, (end - begin) / begin, trend)
