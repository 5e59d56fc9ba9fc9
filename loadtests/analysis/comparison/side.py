"""One side of a comparison: its figures, and their variation if its runs were repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtests.analysis.bunching import bunched_fraction
from loadtests.analysis.columns import UNKNOWN, Flags, Floats, Ints, mean_value
from loadtests.analysis.comparison.bootstrap import MAX_CELLS, block_length, cell_of, resample
from loadtests.analysis.outcomes import work_moments
from loadtests.analysis.run_data import RunData
from loadtests.record import LOST, RequestOutcome

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
    values = np.empty(len(totals))
    for row, below in enumerate(totals):
        values[row] = np.interp(level * (below[-1] - 1) + 1, below, grid) if below[-1] >= 1 else np.nan
    return values


MIN_SAMPLES = 20
"""Minimum requests of a figure, or seconds of a throughput, for a meaningful interval."""

MIN_BLOCKS = 30
"""Minimum blocks of a percentile's requests if neighbours are correlated. With fewer the intervals are too narrow: in
simulated pairs of equal runs with 320 requests and a correlation of 0.9, every ninth showed a change."""


@dataclass(frozen=True)
class Estimate:
    """A figure, its replicates and its number of samples. `independent` is the number of cells among which the
    replicates were drawn: requests (each may have many gaps) or seconds. `block` of them were drawn together."""

    value: float
    replicates: Floats
    samples: int
    independent: int
    block: int = 1


class ComparisonSide:
    """Equal runs, taken together: their values are pooled, and percentiles are never averaged."""

    def __init__(self, runs: Sequence[RunData], times: int) -> None:
        self._runs = runs
        self._times = times

    @property
    def has_slo(self) -> tuple[str, ...] | None:
        """The latency SLOs of all runs, which define a good request; None if the runs differ."""
        slos = {run.plan.slo for run in self._runs}
        return slos.pop() if len(slos) == 1 and self._runs[0].good is not None else None

    @property
    def encodes(self) -> bool:
        """Whether the runs had texts computed by an encoder."""
        return all(run.plan.encodes for run in self._runs)

    @property
    def bunched_fraction(self) -> float:
        """The fraction of gaps between tokens that came at once if it is too large, else 0."""
        return bunched_fraction(np.concatenate([run.latencies.gaps for run in self._runs]))

    @property
    def completed(self) -> int:
        """The number of completed requests in the measured part."""
        return sum(int(run.measured_columns.with_outcome(RequestOutcome.COMPLETED).sum()) for run in self._runs)

    @property
    def input_tokens(self) -> float | None:
        """The mean tokens of a prompt, as the server counted them; None if it did not."""
        counted = np.concatenate([run.measured_columns.input_tokens for run in self._runs])
        return mean_value(counted[counted != UNKNOWN])

    def percentiles(
        self, quantity: str, levels: Sequence[float], random: np.random.Generator
    ) -> dict[float, Estimate] | None:
        """Estimate percentiles (0 to 1) of one of `latencies.QUANTITIES`; None if no request has it."""
        runs = [values for run in self._runs if len((values := _values(run, quantity)).values)]
        if not runs:
            return None
        pooled = np.concatenate([run.values for run in runs])
        length = length_of_blocks(runs, levels)
        replicates = resampled_percentiles(runs, levels, length, self._times, random)
        requests = sum(len(np.unique(run.owner)) for run in runs)
        block = length * max(-(-run.requests // MAX_CELLS) for run in runs)
        return {
            level: Estimate(float(np.quantile(pooled, level)), replicates[level], len(pooled), requests, block)
            for level in levels
        }

    def throughput(self, random: np.random.Generator) -> Estimate | None:
        """Estimate output tokens (or texts) per second in the measured part, by resampling its seconds."""
        return self._ratio([_work_seconds(run) for run in self._runs if run.window.seconds >= 1], random)

    def error_rate(self, random: np.random.Generator) -> Estimate | None:
        """Estimate the error rate among requests whose client stayed."""
        return self._fraction([run.measured_columns.with_outcome(*LOST) for run in self._runs], random)

    def goodput(self, random: np.random.Generator) -> Estimate | None:
        """Estimate the fraction of good requests among those whose client stayed; None without an SLO."""
        return self._fraction([run.good[run.measured_rows] for run in self._runs if run.good is not None], random)

    def _fraction(self, flags: Sequence[Flags], random: np.random.Generator) -> Estimate | None:
        counted = [~run.measured_columns.with_outcome(RequestOutcome.CANCELLED) for run in self._runs]
        cells = [
            np.stack((own & stayed, stayed), axis=1).astype(float) for own, stayed in zip(flags, counted, strict=True)
        ]
        estimate = self._ratio([own[own[:, 1] > 0] for own in cells], random)
        if estimate is None or 0 < estimate.value < 1:
            return estimate
        # Zero events, resampled, are zero again; use Jeffreys' interval, since events are still possible.
        seen = estimate.value * estimate.samples
        replicates = random.beta(seen + 0.5, estimate.samples - seen + 0.5, self._times)
        return Estimate(estimate.value, replicates, estimate.samples, estimate.independent)

    def _ratio(self, runs: Sequence[Floats], random: np.random.Generator) -> Estimate | None:
        """Estimate the sum of the first column divided by that of the second."""
        runs = [cells for cells in runs if len(cells)]
        if not runs:
            return None
        over, under = np.sum([cells.sum(axis=0) for cells in runs], axis=0).tolist()
        value = over / under
        packed = [_pack_cells(cells) for cells in runs]
        length = max(block_length(cells[:, 0] - value * cells[:, 1]) for cells in packed)
        totals = resample(packed, length, self._times, random)
        number = sum(map(len, runs))
        return Estimate(value, totals[:, 0] / totals[:, 1], number, number)


def _values(run: RunData, quantity: str) -> PooledValues:
    if quantity == "itl":
        return PooledValues(run.latencies.gaps, run.latencies.gap_owner, len(run.measured_columns))
    own = run.latencies.per_request(quantity)
    there = np.flatnonzero(~np.isnan(own))
    return PooledValues(own[there], there, len(run.measured_columns))


def _work_seconds(run: RunData) -> Floats:
    """Return, for each whole second of the measured part, its tokens (or texts) and 1."""
    moments, weights = work_moments(run.columns)
    seconds = int(run.window.seconds)
    second = np.floor(moments - run.window.start)
    inside = (second >= 0) & (second < seconds)
    tokens = np.bincount(second[inside].astype(np.int64), weights=weights[inside], minlength=seconds)
    return np.stack((tokens, np.ones(seconds)), axis=1)


def _pack_cells(cells: Floats) -> Floats:
    owner, number = cell_of(np.arange(len(cells)), len(cells))
    columns = [np.bincount(owner, weights=column, minlength=number) for column in cells.T]
    return np.stack(columns, axis=1)
