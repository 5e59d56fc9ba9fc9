"""One side of a comparison: its figures, and what they would be if its runs were made again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtests.analysis.bunching import bunched_fraction
from loadtests.analysis.columns import Flags, Floats
from loadtests.analysis.comparison.block_length import block_length
from loadtests.analysis.comparison.bootstrap import MAX_CELLS, cell_of, resample
from loadtests.analysis.comparison.quantiles import PooledValues, length_of_blocks, resampled_percentiles
from loadtests.analysis.outcomes import token_moments
from loadtests.analysis.run_data import RunData
from loadtests.record import RequestOutcome

MIN_SAMPLES = 20
"""Requests of which a figure must be, and seconds of a throughput, for an interval of it to mean anything."""

MIN_BLOCKS = 30
"""Blocks in which a percentile's requests must be where neighbours hang together. Of fewer the intervals are too
narrow: of simulated pairs of runs alike, of 320 requests with a correlation of 0.9, every ninth showed a change."""


@dataclass(frozen=True)
class Estimate:
    """A figure, its replicates, and of how many samples it is; `independent` are the cells among which they were drawn:
    requests, of which one may have many gaps, or seconds; `block` of them were drawn together."""

    value: float
    replicates: Floats
    samples: int
    independent: int
    block: int = 1


class ComparisonSide:
    """Runs that were made alike, taken together: their values are pooled, never their percentiles averaged."""

    def __init__(self, runs: Sequence[RunData], times: int) -> None:
        self._runs = runs
        self._times = times

    @property
    def has_slo(self) -> tuple[str, ...] | None:
        """What all runs promised of latencies, which says what a good request is; None where that is not one thing."""
        found = {run.plan.slo for run in self._runs}
        return found.pop() if len(found) == 1 and self._runs[0].good is not None else None

    @property
    def bunched_fraction(self) -> float:
        """The share of gaps between tokens that came at once, where it is too large; else 0."""
        return bunched_fraction(np.concatenate([run.latencies.gaps for run in self._runs]))

    @property
    def completed(self) -> int:
        """How many of the requests that count were completed."""
        return sum(int(run.measured_columns.with_outcome(RequestOutcome.COMPLETED).sum()) for run in self._runs)

    def percentiles(
        self, quantity: str, levels: Sequence[float], random: np.random.Generator
    ) -> dict[float, Estimate] | None:
        """Of one of `latencies.QUANTITIES`, levels from 0 to 1; None where no request has it."""
        runs = [values for run in self._runs if len((values := _values(run, quantity)).values)]
        if not runs:
            return None
        pooled = np.concatenate([run.values for run in runs])
        length = length_of_blocks(runs, levels)
        found = resampled_percentiles(runs, levels, length, self._times, random)
        requests = sum(len(np.unique(run.owner)) for run in runs)
        block = length * max(-(-run.requests // MAX_CELLS) for run in runs)
        return {
            level: Estimate(float(np.quantile(pooled, level)), found[level], len(pooled), requests, block)
            for level in levels
        }

    def throughput(self, random: np.random.Generator) -> Estimate | None:
        """Output tokens a second, that came in the measured part; its seconds are resampled."""
        return self._ratio([_token_seconds(run) for run in self._runs if run.window.seconds >= 1], random)

    def error_rate(self, random: np.random.Generator) -> Estimate | None:
        """Of all whose client stayed."""
        bad = (RequestOutcome.REJECTED, RequestOutcome.TIMED_OUT, RequestOutcome.FAILED, RequestOutcome.UNFINISHED)
        return self._fraction([run.measured_columns.with_outcome(*bad) for run in self._runs], random)

    def goodput(self, random: np.random.Generator) -> Estimate | None:
        """The share of good ones of all whose client stayed; None where there is no `SLO`."""
        return self._fraction([run.good[run.measured_rows] for run in self._runs if run.good is not None], random)

    def _fraction(self, flags: Sequence[Flags], random: np.random.Generator) -> Estimate | None:
        counted = [~run.measured_columns.with_outcome(RequestOutcome.CANCELLED) for run in self._runs]
        cells = [
            np.stack((own & stayed, stayed), axis=1).astype(float) for own, stayed in zip(flags, counted, strict=True)
        ]
        found = self._ratio([own[own[:, 1] > 0] for own in cells], random)
        if found is None or 0 < found.value < 1:
            return found
        # What was never seen may still be: Jeffreys' interval, for a resampled nothing is nothing again.
        seen = found.value * found.samples
        replicates = random.beta(seen + 0.5, found.samples - seen + 0.5, self._times)
        return Estimate(found.value, replicates, found.samples, found.independent)

    def _ratio(self, runs: Sequence[Floats], random: np.random.Generator) -> Estimate | None:
        """The sum of the first column by that of the second."""
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


def _token_seconds(run: RunData) -> Floats:
    """For each whole second of the measured part: its tokens, and 1."""
    moments, weights = token_moments(run.columns)
    seconds = int(run.window.seconds)
    second = np.floor(moments - run.window.start)
    inside = (second >= 0) & (second < seconds)
    tokens = np.bincount(second[inside].astype(np.int64), weights=weights[inside], minlength=seconds)
    return np.stack((tokens, np.ones(seconds)), axis=1)


def _pack_cells(cells: Floats) -> Floats:
    owner, number = cell_of(np.arange(len(cells)), len(cells))
    columns = [np.bincount(owner, weights=column, minlength=number) for column in cells.T]
    return np.stack(columns, axis=1)
