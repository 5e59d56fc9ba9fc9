"""Circular block bootstrap: estimates how much a figure would vary if its runs were repeated.

The unit of resampling is a cell, in order of time: a request with all of its gaps, or a second. Blocks of consecutive
cells are drawn with replacement, so correlated neighbours stay together. If a side has several runs, runs are drawn
first (Politis and Romano, "A circular block-resampling procedure for stationary data", 1992; for runs Davison and
Hinkley, "Bootstrap methods and their application", 1997, section 3.8).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from loadtests.analysis.columns import Floats, Ints

MAX_CELLS = 20_000
"""Maximum cells per run. In a longer run neighbours share a cell, to bound memory and time."""

_BATCH_DRAWS = 400_000


def resample(runs: Sequence[Floats], length: int, times: int, random: np.random.Generator) -> Floats:
    """Return the totals of resampled sides, [times, columns]; each run has one row per cell.

    Each resample draws as many runs as there are, and from each as many cells, in blocks of `length`.
    """
    totals = np.zeros((times, runs[0].shape[1]))
    chosen = random.integers(0, len(runs), (times, len(runs)))
    for number, cells in enumerate(runs):
        whose = np.nonzero(chosen == number)[0]
        np.add.at(totals, whose, _totals(cells, length, len(whose), random))
    return totals


def _totals(cells: Floats, length: int, times: int, random: np.random.Generator) -> Floats:
    """Return `times` resampled totals of a run: how often each cell was drawn, times its values."""
    totals = np.empty((times, cells.shape[1]))
    at_once = max(1, _BATCH_DRAWS // len(cells))
    for first in range(0, times, at_once):
        part = totals[first : first + at_once]
        part[:] = _draws(len(cells), length, len(part), random) @ cells
    return totals


def _draws(cells: int, length: int, times: int, random: np.random.Generator) -> Floats:
    """Return how often each cell is in randomly drawn blocks, [times, cells]; the cells are circular.

    Blocks that fill the run more than once weigh less, so that totals are of one run.
    """
    length = min(length, cells)
    blocks = -(-cells // length)
    starts = random.integers(0, cells, (times, blocks)) + np.arange(times)[:, None] * cells
    begun = np.bincount(starts.ravel(), minlength=times * cells).reshape(times, cells)
    around = np.concatenate((begun[:, cells - length + 1 :], begun), axis=1)
    sums = np.concatenate((np.zeros((times, 1)), np.cumsum(around, axis=1)), axis=1)
    draws: Floats = (sums[:, length:] - sums[:, :-length]) * (cells / (blocks * length))
    return draws


def cell_of(owner: Ints, cells: int) -> tuple[Ints, int]:
    """Return the cell of each value, given its owner, and the number of cells; neighbours share a cell if there are
    many."""
    each = -(-cells // MAX_CELLS) if cells else 1
    return owner // each, -(-cells // each)


def interval(value: float, replicates: Floats, confidence: float, degrees_of_freedom: int) -> tuple[float, float]:
    """Return the confidence interval from the percentiles of the replicates.

    If runs were drawn, `degrees_of_freedom` is the number of runs beyond one per side. The bootstrap underestimates the
    variation of so few, so the ends move out by the ratio of Student's distribution to the normal one.
    """
    tail = (1 - confidence) / 2
    low, high = np.quantile(replicates, (tail, 1 - tail)).tolist()
    if not degrees_of_freedom:
        return low, high
    from scipy.stats import norm, t  # slow to import

    wider = float(t.ppf(1 - tail, degrees_of_freedom) / norm.ppf(1 - tail))
    return value - wider * (value - low), value + wider * (high - value)


def block_length(series: Floats) -> int:
    """Return the block length with the least error for the mean of a series, for circular blocks; 1 if uncorrelated.

    Politis and White, "Automatic block-length selection for the dependent bootstrap" (2004), with the correction of
    Patton, Politis and White (2009). At most min(3 sqrt(n), n / 3), as in these papers.
    """
    n = len(series)
    if n < 8 or not np.any(series != series[0]):
        return 1
    # Scale up, so that the squares of very small values do not underflow.
    series = series / np.abs(series).max()
    series = series - series.mean()
    if (largest := float(np.abs(series).max())) < 1e-12:
        return 1
    series = series / largest
    most = math.ceil(min(3 * math.sqrt(n), n / 3))
    needed = max(5, math.ceil(math.log10(n)))
    lags = min(math.ceil(math.sqrt(n)) + needed, n - 1)
    covariance = np.array([series[: n - lag] @ series[lag:] / n for lag in range(lags + 1)])
    reach = min(2 * _last_significant_lag(covariance / covariance[0], n, needed), lags)
    if reach == 0:
        return 1
    lag = np.arange(1, reach + 1)
    # The flat-top window: 1 up to half of the range, then linear to 0.
    window = np.clip(2 * (1 - lag / reach), 0, 1)
    spread = 2 * float((window * lag * covariance[1 : reach + 1]).sum())
    long_run = float(covariance[0] + 2 * (window * covariance[1 : reach + 1]).sum())
    if long_run <= 0:
        return 1
    best: float = (1.5 * (spread / long_run) ** 2 * n) ** (1 / 3)
    return max(1, min(most, math.ceil(best)))


def _last_significant_lag(correlation: Floats, n: int, needed: int) -> int:
    """Return the lag after which `needed` lags in a row are insignificant."""
    bound = 2 * math.sqrt(math.log10(n) / n)
    large = np.flatnonzero(np.abs(correlation[1:]) >= bound) + 1
    last = 0
    for lag in large.tolist():
        if lag > last + needed:
            break
        last = lag
    return last
