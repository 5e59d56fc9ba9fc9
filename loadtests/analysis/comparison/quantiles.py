"""Percentiles of resampled runs, without sorting all values again each time."""

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
"""Where percentiles may lie: all about, and closely around the 50th and the 99th."""

_COMMON_VALUE_FRACTION = 0.001
"""The share of all values beyond which one of them weighs."""


@dataclass(frozen=True)
class PooledValues:
    """One quantity of one run: all values, and to which of so many requests, in the order of due, each belongs."""

    values: Floats
    owner: Ints
    requests: int


def resampled_percentiles(
    runs: Sequence[PooledValues], levels: Sequence[float], length: int, times: int, random: np.random.Generator
) -> dict[float, Floats]:
    """Each percentile (0 to 1) of so many resampled sides; a side's values are those of its runs together.

    Between the marks of a grid of some hundred values, or at all of fewer, cells are counted and not compared, so the
    result is as exact as linear interpolation between neighbours of them.
    """
    pooled = np.concatenate([run.values for run in runs])
    grid = _grid(np.sort(pooled))
    cells = [_below(run, grid) for run in runs]
    totals = resample(cells, length, times, random)
    return {level: _percentile(totals, grid, level) for level in levels}


def length_of_blocks(runs: Sequence[PooledValues], levels: Sequence[float]) -> int:
    """How many cells a block has for these percentiles, so that what hangs together stays together."""
    pooled = np.concatenate([run.values for run in runs])
    return max(_length(run, float(np.quantile(pooled, level)), level) for run in runs for level in levels)


def _grid(ordered: Floats) -> Floats:
    """Values between which percentiles are interpolated; a value that many have is approached from just below it, so
    that nothing is made up between it and its neighbour."""
    distinct = np.unique(ordered)
    if len(distinct) > len(_LEVELS):
        distinct = np.unique(ordered[np.round(_LEVELS * (len(ordered) - 1)).astype(np.int64)])
    alike = np.searchsorted(ordered, distinct, side="right") - np.searchsorted(ordered, distinct)
    many = distinct[alike > max(1.0, _COMMON_VALUE_FRACTION * len(ordered))]
    return np.union1d(distinct, np.nextafter(many, -np.inf))


def _below(run: PooledValues, grid: Floats) -> Floats:
    """For each cell, how many of its values are no larger than each mark."""
    owner, cells = cell_of(run.owner, run.requests)
    marks = np.searchsorted(grid, run.values)
    counts = np.bincount(owner * len(grid) + marks, minlength=cells * len(grid)).reshape(cells, len(grid))
    return np.cumsum(counts, axis=1, dtype=float)


def _length(run: PooledValues, mark: float, level: float) -> int:
    """By what each cell adds to the percentile's error: how many of its values are below it, beyond their share."""
    owner, cells = cell_of(run.owner, run.requests)
    return block_length(np.bincount(owner, weights=(run.values <= mark) - level, minlength=cells).astype(float))


def _percentile(totals: Floats, grid: Floats, level: float) -> Floats:
    """Linear between order statistics, as numpy's: the value of rank level * (count - 1) + 1."""
    found = np.empty(len(totals))
    for row, below in enumerate(totals):
        found[row] = np.interp(level * (below[-1] - 1) + 1, below, grid) if below[-1] >= 1 else np.nan
    return found
