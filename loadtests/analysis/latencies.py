"""Latencies of each request, as `Summary` defines them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from loadtests.analysis.columns import Columns, Flags, Floats, Ints
from loadtests.analysis.summary import DistributionSummary
from loadtests.record import RequestOutcome

_LEVELS = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9}

_CURVE_PERCENTILES = (*range(0, 91, 5), *range(91, 99), 99, 99.5, 99.8, 99.9, 99.95, 99.98, 99.99)


def summarize_values(values: Floats) -> DistributionSummary | None:
    """Return exact statistics of all values; None without any. Percentiles are linear between order statistics (numpy's
    default; Hyndman and Fan's type 7); the deviation is that of the values themselves (divided by n)."""
    if not len(values):
        return None
    percentiles = np.percentile(values, list(_LEVELS.values()))
    return DistributionSummary(
        count=len(values),
        mean=float(values.mean()),
        std=float(values.std()),
        min=float(values.min()),
        max=float(values.max()),
        **{name: float(value) for name, value in zip(_LEVELS, percentiles, strict=True)},
    )


def percentile_curve(values: Floats) -> tuple[tuple[float, float], ...]:
    """Return percentiles from 0 to 100 and their values, for a curve; except for the last, only those that at least one
    value exceeds."""
    levels = [level for level in _CURVE_PERCENTILES if (100 - level) / 100 * len(values) >= 1] + [100]
    percentiles = np.percentile(values, levels).tolist() if len(values) else []
    return tuple((float(level), value) for level, value in zip(levels, percentiles, strict=False))


QUANTITIES = ("ttft", "ttft_sent", "itl", "tpot", "e2e", "e2e_sent")


@dataclass(frozen=True)
class Latencies:
    """Latencies in seconds, one entry per request, NaN if there is none; and all gaps of the counted requests.

    `itl` is each request's mean gap; `gaps` are the gaps themselves, pooled, and `gap_owner` the request of each.
    """

    ttft: Floats
    ttft_sent: Floats
    itl: Floats
    tpot: Floats
    e2e: Floats
    e2e_sent: Floats
    gaps: Floats
    gap_owner: Ints

    @classmethod
    def from_columns(cls, columns: Columns) -> Latencies:
        """Compute TTFT and gaps of completed and cancelled requests, everything else of completed ones."""
        completed = columns.with_outcome(RequestOutcome.COMPLETED)
        seen = completed | columns.with_outcome(RequestOutcome.CANCELLED)
        span = columns.last - columns.first
        several = columns.responses > 1
        counted = seen[columns.gap_owner]
        return cls(
            ttft=_where(seen, columns.first - columns.due),
            ttft_sent=_where(seen, columns.first - columns.sent),
            itl=_where(seen & several, span / np.maximum(columns.responses - 1, 1)),
            tpot=_where(
                completed & several & (columns.received_tokens > 1), span / np.maximum(columns.received_tokens - 1, 1)
            ),
            e2e=_where(completed, columns.ended - columns.due),
            e2e_sent=_where(completed, columns.ended - columns.sent),
            gaps=columns.gaps if counted.all() else columns.gaps[counted],
            gap_owner=columns.gap_owner if counted.all() else columns.gap_owner[counted],
        )

    def samples(self, quantity: str) -> Floats:
        """Return all values of one of `QUANTITIES`: the pooled gaps for `itl`, otherwise one value per request."""
        if quantity == "itl":
            return self.gaps
        values = self.per_request(quantity)
        return values[~np.isnan(values)]

    def per_request(self, quantity: str) -> Floats:
        """Return each request's value of one of `QUANTITIES`, NaN without one; for `itl` the mean of its gaps."""
        values: Floats = getattr(self, quantity)
        return values

    def curves(self) -> Mapping[str, tuple[tuple[float, float], ...]]:
        """The curves of all quantities with values."""
        curves = {quantity: percentile_curve(self.samples(quantity)) for quantity in QUANTITIES}
        return {quantity: curve for quantity, curve in curves.items() if curve}

    def distributions(self) -> Mapping[str, DistributionSummary]:
        """The distributions of all quantities with values."""
        distributions = {quantity: summarize_values(self.samples(quantity)) for quantity in QUANTITIES}
        return {quantity: distribution for quantity, distribution in distributions.items() if distribution}


def _where(flags: Flags, values: Floats) -> Floats:
    return np.where(flags, values, np.nan)
