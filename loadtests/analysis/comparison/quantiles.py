"""Percentiles of resampled runs, without sorting all values again for each resample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtests.analysis.columns import Floats, Ints
from loadtests.analysis.comparison.block_length import block_length
from loadtests.analysis.comparison.bootstrap import cell_of, resample

_LEVELS = np.unique(
    np.concatenate((np.linspace(0, 1, 101), np.linspace(0.4, 0.6, 161), np.linspace(0.96, 1, 161), [0.9995]))
)
"""Levels of the grid: spread over the range, and dense around the 50th and the 99th percentile."""

_COMMON_VALUE_FRACTION = 0.001
"""A value is frequent if this fraction of all values equals it."""


@dataclass(frozen=True)
class PooledValues:
    """The values of one quantity in one run, and the request that each belongs to, in order of due time."""

    values: Floats
    owner: Ints
    requests: int


def resampled_percentiles(
    runs: Sequence[PooledValues], levels: Sequence[float], length: int, times: int, random: np.random.Generator
) -> dict[float, Floats]:
    """Return each percentile (0 to 1) of the resampled sides; a side's values are those of all its runs.

    With many values, cells are counted between the marks of a grid of some hundred values, so the result is as exact as
    linear interpolation between neighbouring marks.
    """
    pooled = np.concatenate([run.values for run in runs])
    grid = _grid(np.sort(pooled))
    cells = [_below(run, grid) for run in runs]
    totals = resample(cells, length, times, random)
    return {level: _percentile(totals, grid, level) for level in levels}


def length_of_blocks(runs: Sequence[PooledValues], levels: Sequence[float]) -> int:
    """Return the block length for these percentiles that keeps correlated neighbours together."""
    pooled = np.concatenate([run.values for run in runs])
    return max(_length(run, float(np.quantile(pooled, level)), level) for run in runs for level in levels)


def _grid(ordered: Floats) -> Floats:
    """Return the values between which percentiles are interpolated. A frequent value also gets a mark just below it, so
    that nothing is interpolated between it and its neighbour."""
    distinct = np.unique(ordered)
    if len(distinct) > len(_LEVELS):
        distinct = np.unique(ordered[np.round(_LEVELS * (len(ordered) - 1)).astype(np.int64)])
    alike = np.searchsorted(ordered, distinct, side="right") - np.searchsorted(ordered, distinct)
    many = distinct[alike > max(1.0, _COMMON_VALUE_FRACTION * len(ordered))]
    return np.union1d(distinct, np.nextafter(many, -np.inf))


def _below(run: PooledValues, grid: Floats) -> Floats:
    """Return, for each cell, how many of its values are at most each mark."""
    owner, cells = cell_of(run.owner, run.requests)
    marks = np.searchsorted(grid, run.values)
    counts = np.bincount(owner * len(grid) + marks, minlength=cells * len(grid)).reshape(cells, len(grid))
    return np.cumsum(counts, axis=1, dtype=float)


def _length(run: PooledValues, mark: float, level: float) -> int:
    """Return the block length for the contribution of each cell to the percentile's error."""
    owner, cells = cell_of(run.owner, run.requests)
    return block_length(np.bincount(owner, weights=(run.values <= mark) - level, minlength=cells).astype(float))


def _percentile(totals: Floats, grid: Floats, level: float) -> Floats:
    """Interpolate linearly between order statistics, as numpy does: the value of rank level * (count - 1) + 1."""
    found = np.empty(len(totals))
    for row, below in enumerate(totals):
        found[row] = np.interp(level * (below[-1] - 1) + 1, below, grid) if below[-1] >= 1 else np.nan
    return found
