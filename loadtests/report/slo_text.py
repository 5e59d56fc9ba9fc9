"""The SLO's bounds as a reader sees them, and what charts draw of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from loadtests.analysis.slo import Slo
from loadtests.analysis.summary import SloResult
from loadtests.report.formats import percent, seconds, text

_STATISTICS = {50: "p50", 75: "p75", 90: "p90", 95: "p95", 99: "p99", 99.9: "p999", 100: "max"}


def slo_text(bound: SloResult) -> str:
    """What a bound says, with the sign that people write."""
    return format_slo(bound.text)


def format_slo(slo: str) -> str:
    """
    >>> format_slo("p99 ttft<=500ms"), format_slo("mean e2e < 3s")
    ('p99 ttft ≤ 500ms', 'mean e2e < 3s')
    """
    return re.sub(r"\s*(<=?)\s*", lambda sign: " ≤ " if sign[1] == "<=" else " < ", text(slo))


def slo_value(bound: SloResult, value: float | None) -> str:
    """A figure that the bound is about, in its unit."""
    return percent(value) if Slo.parse(bound.text).quantity == "error_rate" else seconds(value)


def overall_verdict(results: Sequence[SloResult]) -> str:
    """Of all bounds together."""
    found = {bound.verdict for bound in results}
    return "missed" if "missed" in found else "not evaluated" if "not evaluated" in found else "met"


def quantities(results: Sequence[SloResult]) -> Iterator[str]:
    """The latencies that are bounded."""
    for bound in results:
        quantity = Slo.parse(bound.text).quantity
        if quantity != "error_rate":
            yield quantity


def statistic(bound: SloResult) -> str:
    """The field of a `DistributionSummary` that the bound is about; empty where no field has that percentile."""
    parsed = Slo.parse(bound.text)
    return "mean" if parsed.statistic == "mean" else _STATISTICS.get(parsed.level, "")


def strictest(results: Sequence[SloResult], *names: str) -> SloResult | None:
    """Of the bounds of these latencies, the one that looks furthest into the tail."""
    found = [bound for bound in results if Slo.parse(bound.text).quantity in names]
    return max(found, key=lambda bound: Slo.parse(bound.text).level, default=None)
