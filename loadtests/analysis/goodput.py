"""Computes goodput: the requests that met the SLO individually."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from loadtests.analysis.columns import Columns, Flags
from loadtests.analysis.latencies import Latencies
from loadtests.analysis.slo import Slo
from loadtests.analysis.summary import Goodput, Requests
from loadtests.record import RequestOutcome


def good_requests(slos: Iterable[Slo], columns: Columns, latencies: Latencies) -> Flags | None:
    """Return which requests were completed within all latency limits; None if no SLO limits a latency.

    If a quantity has several limits, the widest applies. A stream with a single response has no gaps and no TPOT, and
    cannot miss those limits. A unary answer has no TTFT either, so it is never good if one of these is limited.
    """
    limits: dict[str, Slo] = {}
    for slo in slos:
        other = limits.get(slo.quantity)
        if slo.statistic and (other is None or other.limit < slo.limit):
            limits[slo.quantity] = slo
    if not limits:
        return None
    good = columns.with_outcome(RequestOutcome.COMPLETED)
    streamed = ~np.isnan(latencies.ttft)
    for quantity, slo in limits.items():
        values = latencies.per_request(quantity)
        good &= slo.met_by(values) | (np.isnan(values) & streamed)
    return good


def goodput(good: Flags, requests: Requests, seconds: float) -> Goodput:
    count = int(good.sum())
    return Goodput(
        good=count,
        per_second=count / seconds if seconds else 0.0,
        of_sent=count / requests.not_cancelled if requests.not_cancelled else 0.0,
        of_completed=count / requests.completed if requests.completed else 0.0,
    )
