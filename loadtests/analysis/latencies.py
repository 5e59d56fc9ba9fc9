"""What each request took, by the definitions of `Summary`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from loadtests.analysis.columns import Columns, Flags, Floats, Ints
from loadtests.analysis.distribution import percentile_curve, summarize_values
from loadtests.analysis.summary import DistributionSummary
from loadtests.record import RequestOutcome

QUANTITIES = ("ttft", "ttft_sent", "itl", "tpot", "e2e", "e2e_sent")


@dataclass(frozen=True)
class Latencies:
    """Seconds, one entry a request, NaN where there is none; and all gaps of those that count.

    `itl` is each request's mean gap, `gaps` are the gaps themselves, pooled, and `gap_owner` says whose each is.
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
        """TTFT and gaps are of completed and cancelled requests, all else of completed ones."""
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
        """All values of one of `QUANTITIES`: for `itl` the pooled gaps, else one for each request that has one."""
        if quantity == "itl":
            return self.gaps
        values = self.per_request(quantity)
        return values[~np.isnan(values)]

    def per_request(self, quantity: str) -> Floats:
        """Each request's own value of one of `QUANTITIES`, NaN where it has none: for `itl` the mean of its gaps."""
        found: Floats = getattr(self, quantity)
        return found

    def curves(self) -> Mapping[str, tuple[tuple[float, float], ...]]:
        """Of all quantities of which there is anything."""
        found = {quantity: percentile_curve(self.samples(quantity)) for quantity in QUANTITIES}
        return {quantity: curve for quantity, curve in found.items() if curve}

    def distributions(self) -> Mapping[str, DistributionSummary]:
        """Those of which there is anything."""
        found = {quantity: summarize_values(self.samples(quantity)) for quantity in QUANTITIES}
        return {quantity: spread for quantity, spread in found.items() if spread}


def _where(flags: Flags, values: Floats) -> Floats:
    return np.where(flags, values, np.nan)
