"""The promise's bounds as a reader sees them, and what charts draw of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from loadtests.analysis.promise import Promise
from loadtests.analysis.summary import Bound
from loadtests.report.formats import seconds, share, text

_STATISTICS = {50: "p50", 75: "p75", 90: "p90", 95: "p95", 99: "p99", 99.9: "p999", 100: "max"}


def bound_text(bound: Bound) -> str:
    """What a bound says, with the sign that people write."""
    return promise_text(bound.text)


def promise_text(promise: str) -> str:
    """
    >>> promise_text("p99 ttft<=500ms"), promise_text("mean e2e < 3s")
    ('p99 ttft ≤ 500ms', 'mean e2e < 3s')
    """
    return re.sub(r"\s*(<=?)\s*", lambda sign: " ≤ " if sign[1] == "<=" else " < ", text(promise))


def bound_value(bound: Bound, value: float | None) -> str:
    """A figure that the bound is about, in its unit."""
    return share(value) if Promise.parse(bound.text).quantity == "error_rate" else seconds(value)


def verdict(promise: Sequence[Bound]) -> str:
    """Of all bounds together."""
    found = {bound.verdict for bound in promise}
    return "broken" if "broken" in found else "not judged" if "not judged" in found else "kept"


def quantities(promise: Sequence[Bound]) -> Iterator[str]:
    """The latencies that are bounded."""
    for bound in promise:
        quantity = Promise.parse(bound.text).quantity
        if quantity != "error_rate":
            yield quantity


def statistic(bound: Bound) -> str:
    """The field of a `Spread` that the bound is about; empty where no field has that percentile."""
    parsed = Promise.parse(bound.text)
    return "mean" if parsed.statistic == "mean" else _STATISTICS.get(parsed.level, "")


def strictest(promise: Sequence[Bound], *names: str) -> Bound | None:
    """Of the bounds of these latencies, the one that looks furthest into the tail."""
    found = [bound for bound in promise if Promise.parse(bound.text).quantity in names]
    return max(found, key=lambda bound: Promise.parse(bound.text).level, default=None)
