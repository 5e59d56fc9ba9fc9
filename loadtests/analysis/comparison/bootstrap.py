"""Circular block bootstrap: estimates how much a figure would vary if its runs were repeated.

The unit of resampling is a cell, in order of time: a request with all of its gaps, or a second. Blocks of consecutive
cells are drawn with replacement, so correlated neighbours stay together. If a side has several runs, runs are drawn
first (Politis and Romano, "A circular block-resampling procedure for stationary data", 1992; for runs Davison and
Hinkley, "Bootstrap methods and their application", 1997, section 3.8).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from loadtests.analysis.columns import Floats, Ints

MAX_CELLS = 20_000
"""Maximum cells per run. In a longer run neighbours share a cell, to bound memory and time."""

_BATCH_DRAWS = 400_000


def resample(runs: Sequence[Floats], length: int, times: int, random: np.random.Generator) -> Floats:
    """Return the totals of resampled sides, [times, columns]; each run has one row per cell.

    Each resample draws as many runs as there are, and from each as many cells, in blocks of `length`.
    """
    found = np.zeros((times, runs[0].shape[1]))
    chosen = random.integers(0, len(runs), (times, len(runs)))
    for number, cells in enumerate(runs):
        whose = np.nonzero(chosen == number)[0]
        np.add.at(found, whose, _totals(cells, length, len(whose), random))
    return found


def _totals(cells: Floats, length: int, times: int, random: np.random.Generator) -> Floats:
    """Return `times` resampled totals of a run: how often each cell was drawn, times its values."""
    found = np.empty((times, cells.shape[1]))
    at_once = max(1, _BATCH_DRAWS // len(cells))
    for first in range(0, times, at_once):
        part = found[first : first + at_once]
        part[:] = _draws(len(cells), length, len(part), random) @ cells
    return found


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
    found: Floats = (sums[:, length:] - sums[:, :-length]) * (cells / (blocks * length))
    return found


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
    wider = student(1 - tail, degrees_of_freedom) / NormalDist().inv_cdf(1 - tail) if degrees_of_freedom else 1.0
    return value - wider * (value - low), value + wider * (high - value)


def student(level: float, degrees_of_freedom: int) -> float:
    """Return Student's quantile: exact for 1 and 2 degrees of freedom, within 0.5% for more (Cornish and Fisher)."""
    if degrees_of_freedom == 1:
        return math.tan(math.pi * (level - 0.5))
    if degrees_of_freedom == 2:
        return (2 * level - 1) / math.sqrt(2 * level * (1 - level))
    z, v = NormalDist().inv_cdf(level), degrees_of_freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
