"""Which requests were good on their own."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from loadtests.analysis.columns import Columns, Flags
from loadtests.analysis.latencies import Latencies
from loadtests.analysis.slo import Slo
from loadtests.analysis.summary import Goodput, Requests
from loadtests.record import RequestOutcome


def good_requests(slos: Iterable[Slo], columns: Columns, latencies: Latencies) -> Flags | None:
    """Which were completed within all limits of a latency; None where no SLO bounds one.

    Of several limits of one quantity the widest judges. A stream with a single response has neither gaps nor TPOT and
    can't be too slow in them; a whole answer has no TTFT either, so it is never good where one of these is promised.
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
