"""Which requests were good on their own."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from loadtests.analysis.columns import Columns, Flags
from loadtests.analysis.latencies import Latencies
from loadtests.analysis.promise import Promise
from loadtests.analysis.summary import Goodput, Requests
from loadtests.record import Outcome


def good_requests(promises: Iterable[Promise], columns: Columns, latencies: Latencies) -> Flags | None:
    """Which were completed within all limits of a latency; None where no promise bounds one.

    Of several limits of one quantity the widest judges. A stream with a single response has neither gaps nor TPOT and
    can't be too slow in them; a whole answer has no TTFT either, so it is never good where one of these is promised.
    """
    limits: dict[str, Promise] = {}
    for promise in promises:
        other = limits.get(promise.quantity)
        if promise.statistic and (other is None or other.limit < promise.limit):
            limits[promise.quantity] = promise
    if not limits:
        return None
    good = columns.of(Outcome.COMPLETED)
    streamed = ~np.isnan(latencies.ttft)
    for quantity, promise in limits.items():
        values = latencies.own(quantity)
        good &= promise.kept_by(values) | (np.isnan(values) & streamed)
    return good


def goodput(good: Flags, requests: Requests, seconds: float) -> Goodput:
    count = int(good.sum())
    return Goodput(
        good=count,
        per_second=count / seconds if seconds else 0.0,
        of_sent=count / requests.staying if requests.staying else 0.0,
        of_completed=count / requests.completed if requests.completed else 0.0,
    )
