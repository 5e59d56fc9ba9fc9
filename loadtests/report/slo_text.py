"""SLO bounds as text, and what charts draw of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from loadtests.analysis.slo import Slo
from loadtests.analysis.summary import SloResult
from loadtests.report.formats import percent, seconds, text

_STATISTICS = {50: "p50", 75: "p75", 90: "p90", 95: "p95", 99: "p99", 99.9: "p999", 100: "max"}


def slo_text(bound: SloResult) -> str:
    """Return a bound as text, with typographic signs."""
    return format_slo(bound.text)


def format_slo(slo: str) -> str:
    """
    >>> format_slo("p99 ttft<=500ms"), format_slo("mean e2e < 3s")
    ('p99 ttft ≤ 500ms', 'mean e2e < 3s')
    """
    return re.sub(r"\s*(<=?)\s*", lambda sign: " ≤ " if sign[1] == "<=" else " < ", text(slo))


def slo_value(bound: SloResult, value: float | None) -> str:
    """Return a value of the bound's quantity, in its unit."""
    return percent(value) if Slo.parse(bound.text).quantity == "error_rate" else seconds(value)


def overall_verdict(results: Sequence[SloResult]) -> str:
    """Return the verdict on all bounds together."""
    verdicts = {bound.verdict for bound in results}
    return "missed" if "missed" in verdicts else "not evaluated" if "not evaluated" in verdicts else "met"


def quantities(results: Sequence[SloResult]) -> Iterator[str]:
    """Yield the latencies that have bounds."""
    for bound in results:
        quantity = Slo.parse(bound.text).quantity
        if quantity != "error_rate":
            yield quantity


def statistic(bound: SloResult) -> str:
    """Return the field of a `DistributionSummary` that the bound is about; empty if no field has its percentile."""
    parsed = Slo.parse(bound.text)
    return "mean" if parsed.statistic == "mean" else _STATISTICS.get(parsed.level, "")


def strictest(results: Sequence[SloResult], *names: str) -> SloResult | None:
    """Return the bound of these latencies with the highest percentile."""
    bounds = [bound for bound in results if Slo.parse(bound.text).quantity in names]
    return max(bounds, key=lambda bound: Slo.parse(bound.text).level, default=None)
