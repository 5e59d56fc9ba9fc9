"""Parses SLOs, such as `p99 ttft <= 500ms`, and evaluates them for a run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from loadtests import mlperf
from loadtests.analysis.bunching import BUNCH_GAP, bunched_fraction, mean_without_bunching, values_without_bunching
from loadtests.analysis.columns import Columns, Flags, Floats
from loadtests.analysis.latencies import QUANTITIES, Latencies
from loadtests.analysis.summary import Goodput, Requests, SloResult
from loadtests.errors import LoadError
from loadtests.record import RequestOutcome

_CONFIDENCE = 0.95
"""Confidence that a percentile is not larger than the value that was seen."""

_BOUND = re.compile(
    r"(?:(?P<statistic>mean|max|p(?P<level>\d+(?:\.\d+)?))\s+)?(?P<quantity>\w+)\s*(?P<sign><=?)\s*"
    r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|%)"
)
_SYNTAX_HELP = (
    "write `p99 ttft <= 500ms`, `mean e2e < 3s` or `error_rate <= 1%`: mean, max or a percentile from p0 to p100 of "
    f"{', '.join(QUANTITIES)}, in ms or s; or error_rate, in %"
)


@dataclass(frozen=True)
class Slo:
    """One bound. `limit` is in seconds, or a fraction of 1 for `error_rate`; `level` is that of a percentile, 0 to 100.

    A percentile or max is over all requests whose client stayed. A request without the value (rejected, late, failed or
    unfinished) counts as infinitely late, so `p99 ttft <= 500ms` means that 99 of 100 requests had their first token in
    time. TPOT excludes answers of one token, which have none. A mean is over the requests that have a value, and ITL
    over the existing gaps. If tokens came in bunches, a bound of ITL or TPOT is met only if it would also be met
    without them (`bunching.values_without_bunching`).
    """

    text: str
    statistic: str
    """`mean`, `percentile` (0 is the minimum, 100 the maximum), or `` for `error_rate`."""
    level: float
    quantity: str
    strict: bool
    limit: float

    @classmethod
    def parse(cls, text: str) -> Slo:
        """Parse `[STATISTIC] QUANTITY <= NUMBER UNIT`, or with `<`.

        STATISTIC is `mean`, `max` or a percentile such as `p50` or `p99.9`; QUANTITY is one of `QUANTITIES`; UNIT is
        `ms` or `s`. `error_rate <= 1%` has no statistic. Raises LoadError `invalid_parameter` for anything else.
        """
        match = _BOUND.fullmatch(text.strip())
        if match is None:
            raise LoadError(f"the SLO {text!r} can't be read; {_SYNTAX_HELP}", "invalid_parameter")
        statistic, quantity, unit = match["statistic"] or "", match["quantity"], match["unit"]
        level = 100.0 if statistic == "max" else float(match["level"] or 0)
        if quantity == "error_rate":
            right = not statistic and unit == "%"
        else:
            right = quantity in QUANTITIES and bool(statistic) and unit != "%" and level <= 100
        if not right:
            raise LoadError(f"the SLO {text!r} can't be read; {_SYNTAX_HELP}", "invalid_parameter")
        limit = round(float(match["number"]) * {"ms": 1e-3, "s": 1.0, "%": 1e-2}[unit], 9)
        kind = "percentile" if statistic not in ("", "mean") else statistic
        return cls(" ".join(text.split()), kind, level, quantity, match["sign"] == "<", limit)

    def met_by(self, values: Floats) -> Flags:
        """Return which values meet the bound, rounded to nanoseconds, so that floating-point errors do not matter."""
        exact = np.round(values, 9)
        return exact < self.limit if self.strict else exact <= self.limit

    def evaluate(self, columns: Columns, latencies: Latencies, requests: Requests) -> SloResult:
        """Evaluate the bound for the requests of the measured part; it is missed if nothing was measured."""
        if self.quantity == "error_rate":
            value, samples = (requests.error_rate if requests.not_cancelled else None), requests.not_cancelled
            return self._result(value, samples, [self._too_few(samples)] if samples else ["nothing was measured"])
        values = latencies.samples(self.quantity)
        lost = self._count_lost(columns, latencies)
        if not len(values):
            return self._result(None, lost, ["nothing was measured"])
        if self.statistic == "mean":
            note = f"the mean excludes {lost} requests without a value" if lost else ""
            return self._check_bunching(self._result(float(values.mean()), len(values), [note]), latencies, lost)
        samples = len(values) + lost
        counted = len(np.unique(latencies.gap_owner)) if self.quantity == "itl" else samples
        value = _percentile(values, lost, self.level)
        note = "" if value is not None else f"{lost} of {samples} requests have no value and count as infinitely late"
        bound = self._result(value, samples, [note, self._too_few(counted)])
        return self._check_bunching(bound, latencies, lost)

    def _check_bunching(self, bound: SloResult, latencies: Latencies, lost: int) -> SloResult:
        """If tokens came in bunches, a bound of ITL or TPOT is met only if it would also be met without them; otherwise
        it cannot be evaluated."""
        share = bunched_fraction(latencies.gaps) if self.quantity in ("itl", "tpot") else 0.0
        if not share or not bound.met:
            return bound
        value = self._value_without_bunching(latencies, lost)
        if value is not None and self.met_by(np.array(value)):
            return bound
        why = f"cannot be evaluated: tokens came in bunches, {share:.0%} of the gaps are below {BUNCH_GAP * 1e3:g} ms"
        if value is not None and math.isfinite(value):
            why += f"; without bunching it may be {value * 1e3:.1f} ms"
        return replace(bound, met=False, evaluated=False, note="; ".join(filter(None, (why, bound.note))))

    def _value_without_bunching(self, latencies: Latencies, lost: int) -> float | None:
        if self.statistic == "mean" and self.quantity == "itl":
            return mean_without_bunching(latencies)
        values = values_without_bunching(latencies, self.quantity)
        if self.statistic == "mean":
            return float(values.mean())
        finite = values[np.isfinite(values)]
        return _percentile(finite, lost + len(values) - len(finite), self.level) if len(finite) else None

    def _count_lost(self, part: Columns, latencies: Latencies) -> int:
        """Return how many requests whose client stayed have no value."""
        if self.quantity == "itl":
            return 0
        stayed = ~part.with_outcome(RequestOutcome.CANCELLED)
        if self.quantity == "tpot":
            return int((stayed & ~part.with_outcome(RequestOutcome.COMPLETED)).sum())
        return int((stayed & np.isnan(latencies.per_request(self.quantity))).sum())

    def _result(self, value: float | None, samples: int, notes: list[str]) -> SloResult:
        kept = value is not None and bool(self.met_by(np.array(value)))
        return SloResult(self.text, value, self.limit, kept, samples, "; ".join(filter(None, notes)))

    def _too_few(self, samples: int) -> str:
        least = required_samples(self.level / 100 if self.statistic == "percentile" else 1 - self.limit)
        if least is None or samples >= least:
            return ""
        what = "requests" if self.quantity != "itl" else "requests with gaps"
        return f"{samples} {what} are too few for {_CONFIDENCE:.0%} confidence; at least {least} are needed"


def parse_slos(texts: Iterable[str]) -> tuple[Slo, ...]:
    """Parse SLOs; `mlperf:BENCHMARK` is the bounds of MLPerf's. Raises LoadError `invalid_parameter`."""
    parsed: list[Slo] = []
    for text in texts:
        name = text.strip()
        bounds = mlperf.bounds(name.removeprefix(mlperf.PREFIX)) if name.startswith(mlperf.PREFIX) else (name,)
        if bounds is None:
            known = ", ".join(mlperf.NAMES)
            raise LoadError(f"the SLO {text!r} names no benchmark; give one of {known}", "invalid_parameter")
        parsed += map(Slo.parse, bounds)
    return tuple(parsed)


def required_samples(fraction: float) -> int | None:
    """Return the smallest number of samples whose maximum is, with 95% confidence, above what `fraction` of all values
    stay below: the least n with fraction^n <= 5% (Wilks 1941), 299 for the 99th percentile, 59 for the 95th. As many
    requests without an error show that fewer than one in a hundred fail. None for fractions of 0 and 1.
    """
    return math.ceil(math.log(1 - _CONFIDENCE) / math.log(fraction)) if 0 < fraction < 1 else None


def _percentile(values: Floats, lost: int, level: float) -> float | None:
    """Return the percentile with `lost` additional infinite values; None if it is infinite."""
    samples = len(values) + lost
    # Subtract a little, because 0.999 * 1000 is not quite 999.
    if math.ceil(level / 100 * samples - 1e-9) > len(values):
        return None
    return float(np.percentile(np.concatenate((values, np.full(lost, values.max()))), level))


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
