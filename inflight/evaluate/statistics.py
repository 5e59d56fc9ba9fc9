"""The statistics of evaluations: intervals of values, and of changes between two runs over the same rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inflight.evaluate.metrics import Metric, Statistics, mean, percent

Table = NDArray[np.float64]
"""Statistics of a metric, one line for each row of the golden set."""

RESAMPLES = 2000
LEVEL = 0.05
"""The probability of an error of each test; intervals are those of 1 - LEVEL."""
_CELLS = 4_000_000
_POWER = 0.8
_quantile = NormalDist().inv_cdf


class Verdict(StrEnum):
    BETTER = "better"
    EQUIVALENT = "equivalent"
    WORSE = "worse"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True)
class Interval:
    low: float
    high: float

    def within(self, margin: float) -> bool:
        return -margin < self.low and self.high < margin


@dataclass(frozen=True)
class Change:
    """What became of a metric, in points; positive is better.

    `interval` is the one of 95%, `equivalence` that of 90%, which two one-sided tests at 5% compare with the margin.
    `p` is adjusted for the number of metrics. `harmful` and `beneficial` are numbers of rows. `detectable`: the
    smallest loss that such rows show in 80% of all samples, in this metric alone.
    """

    before: float
    after: float
    points: float
    interval: Interval
    equivalence: Interval
    p: float
    test: str
    rows: int
    harmful: int
    beneficial: int
    detectable: float

    @property
    def churn(self) -> float:
        """The share of rows that became better or worse, whatever they sum up to."""
        return (self.harmful + self.beneficial) / self.rows


def each_row(function: Callable[[Statistics], float], table: Table) -> NDArray[np.float64]:
    """Return the function's value for each line of a table."""
    if function is mean and table[:, 1].all():
        return np.asarray(table[:, 0] / table[:, 1])
    return np.array([function(row) for row in table.tolist()])


def total(table: Table) -> Statistics:
    """Return the sums over all rows, exact in any order."""
    return [math.fsum(column) for column in table.T]


def resampled(table: Table, seed: int) -> Table:
    """Return the sums over `RESAMPLES` samples of rows, drawn with replacement; the same rows for the same seed."""
    random, rows = np.random.default_rng(seed), len(table)
    sums = np.empty((RESAMPLES, table.shape[1]))
    step = max(1, _CELLS // rows)
    for start in range(0, RESAMPLES, step):
        many = min(step, RESAMPLES - start)
        drawn = random.integers(0, rows, (many, rows)) + np.arange(many)[:, None] * rows
        sums[start : start + many] = np.bincount(drawn.ravel(), minlength=many * rows).reshape(many, rows) @ table
    return sums


def value_interval(metric: Metric, table: Table, seed: int) -> Interval:
    """Return the interval of a metric's value: Wilson's for shares, else a bootstrap's."""
    if metric.binary:
        from scipy.stats import binomtest

        found = binomtest(round(table[:, 0].sum()), len(table)).proportion_ci(1 - LEVEL, "wilson")
        return Interval(float(found.low), float(found.high))
    return _percentiles(each_row(metric.aggregate, resampled(table, seed)), LEVEL)


def change(metric: Metric, before: Table, after: Table, seed: int, metrics: int = 1) -> Change:
    """Compare the same rows of two runs. `p` is not adjusted yet for the number of `metrics`."""
    values = [each_row(metric.row_value, table) for table in (before, after)]
    moved = metric.sign * (values[1] - values[0])
    harmful, beneficial = int((moved < 0).sum()), int((moved > 0).sum())
    first, second = (metric.aggregate(total(table)) for table in (before, after))
    judged = (
        _of_pairs(harmful, beneficial, len(before), metrics)
        if metric.binary
        else _of_samples(_sampled_changes(metric, before, after, seed), harmful + beneficial, len(before), metrics)
    )
    return Change(
        before=first,
        after=second,
        points=metric.sign * (metric.points(second) - metric.points(first)),
        rows=len(before),
        harmful=harmful,
        beneficial=beneficial,
        **judged._asdict(),
    )


class _Judged(NamedTuple):
    interval: Interval
    equivalence: Interval
    p: float
    test: str
    detectable: float


def _of_pairs(harmful: int, beneficial: int, rows: int, metrics: int) -> _Judged:
    """McNemar's exact test, and Tango's intervals, which are also right for few rows that differ."""
    from scipy.stats import binomtest

    p = float(binomtest(harmful, harmful + beneficial).pvalue) if harmful + beneficial else 1.0
    interval, equivalence = (paired_share_interval(harmful, beneficial, rows, level) for level in (LEVEL, 2 * LEVEL))
    spread = math.sqrt(harmful + beneficial + 1 - (harmful - beneficial) ** 2 / rows) / rows
    seen = percent(max(_detectable(spread, metrics), _least(metrics) / rows))
    return _Judged(interval, equivalence, p, "McNemar's exact test", seen)


def paired_share_interval(harmful: int, beneficial: int, rows: int, level: float) -> Interval:
    """Return Tango's score interval of a change of paired shares, in points (Tango, Statistics in Medicine 17, 1998,
    891-908)."""
    from scipy.optimize import brentq

    quantile = _quantile(1 - level / 2)

    def score(change: float) -> float:
        b = -(beneficial + harmful) + (2 * rows - beneficial + harmful) * change
        c = -harmful * change * (1 - change)
        share = (math.sqrt(max(0.0, b * b - 8 * rows * c)) - b) / (4 * rows)
        variance = rows * (2 * share + change * (1 - change))
        return (beneficial - harmful - rows * change) / math.sqrt(max(variance, 1e-12))

    edge, found = 1 - 1e-9, (beneficial - harmful) / rows

    def bound(target: float, end: float) -> float:
        if (score(end) - target) * (score(found) - target) > 0:
            return end
        return float(brentq(lambda change: score(change) - target, *sorted((found, end))))

    return Interval(percent(bound(quantile, -edge)), percent(bound(-quantile, edge)))


def _sampled_changes(metric: Metric, before: Table, after: Table, seed: int) -> NDArray[np.float64]:
    sums = resampled(np.hstack((before, after)), seed)
    ends = (each_row(metric.aggregate, part).tolist() for part in np.hsplit(sums, 2))
    return np.array([metric.sign * (metric.points(new) - metric.points(old)) for old, new in zip(*ends, strict=True)])


def _of_samples(changes: NDArray[np.float64], differ: int, rows: int, metrics: int) -> _Judged:
    """A paired bootstrap: the share of samples whose change has the other sign, and at least the p value of so many
    rows that all `differ` to one side, since samples of few rows are all alike."""
    less = min(int((changes <= 0).sum()), int((changes >= 0).sum()))
    p = min(1.0, max(2 * (less + 1) / (len(changes) + 1), 2.0 ** (1 - differ)))
    interval, equivalence = (_percentiles(changes, level) for level in (LEVEL, 2 * LEVEL))
    seen = _detectable(float(np.std(changes)), metrics)
    if differ < _least(metrics):  # their spread says nothing; so many rows that fall to 0 would be seen
        seen = max(seen, percent(_least(metrics) / rows))
    return _Judged(interval, equivalence, p, "paired bootstrap", seen)


def adjust(changes: Sequence[float]) -> list[float]:
    """Return p values adjusted for their number (Holm), so that more metrics find no more changes by chance."""
    adjusted, least = [0.0] * len(changes), 0.0
    for rank, place in enumerate(sorted(range(len(changes)), key=changes.__getitem__)):
        adjusted[place] = least = max(least, min(1.0, (len(changes) - rank) * changes[place]))
    return adjusted


def verdict(metric: Metric, found: Change, margin: float) -> Verdict:
    """Return what a change shows: equivalent if it is certainly smaller than the margin, better or worse if it is
    certainly one."""
    fewest = 3 / (margin / 100) if metric.bounded and not metric.binary else 10  # of which none changed: 95% < margin
    if found.equivalence.within(margin) and found.rows >= fewest:
        return Verdict.EQUIVALENT
    if found.p < LEVEL and found.points:
        return Verdict.BETTER if found.points > 0 else Verdict.WORSE
    return Verdict.UNKNOWN


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict of all metrics: the worst of them."""
    order = (Verdict.WORSE, Verdict.UNKNOWN, Verdict.BETTER, Verdict.EQUIVALENT)
    return next(each for each in order if each in verdicts)


def _least(metrics: int) -> int:
    """Return how many rows that differ, all to the worse, are significant."""
    return 1 + math.ceil(math.log2(metrics / LEVEL))


def _detectable(spread: float, metrics: int) -> float:
    return spread * (_quantile(1 - LEVEL / metrics / 2) + _quantile(_POWER))


def _percentiles(values: NDArray[np.float64], level: float) -> Interval:
    low, high = np.quantile(values, (level / 2, 1 - level / 2))
    return Interval(float(low), float(high))
