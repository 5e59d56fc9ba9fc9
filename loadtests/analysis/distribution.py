"""Summarizes the distribution of a quantity."""

from __future__ import annotations

import numpy as np

from loadtests.analysis.columns import Floats
from loadtests.analysis.summary import DistributionSummary

_LEVELS = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9}

_CURVE_PERCENTILES = (*range(0, 91, 5), *range(91, 99), 99, 99.5, 99.8, 99.9, 99.95, 99.98, 99.99)


def summarize_values(values: Floats) -> DistributionSummary | None:
    """Return exact statistics of all values; None without any. Percentiles are linear between order statistics (numpy's
    default; Hyndman and Fan's type 7); the deviation is that of the values themselves (divided by n)."""
    if not len(values):
        return None
    found = np.percentile(values, list(_LEVELS.values()))
    return DistributionSummary(
        count=len(values),
        mean=float(values.mean()),
        std=float(values.std()),
        min=float(values.min()),
        max=float(values.max()),
        **{name: float(value) for name, value in zip(_LEVELS, found, strict=True)},
    )


def percentile_curve(values: Floats) -> tuple[tuple[float, float], ...]:
    """Return percentiles from 0 to 100 and their values, for a curve; except for the last, only those that at least one
    value exceeds."""
    levels = [level for level in _CURVE_PERCENTILES if (100 - level) / 100 * len(values) >= 1] + [100]
    found = np.percentile(values, levels).tolist() if len(values) else []
    return tuple((float(level), value) for level, value in zip(levels, found, strict=False))
