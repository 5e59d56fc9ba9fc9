"""Bounds that a deployment promises, such as `p99 ttft <= 500ms`, and whether a run kept them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from loadtests.analysis.columns import Flags, Floats
from loadtests.analysis.latencies import QUANTITIES, Latencies
from loadtests.analysis.summary import Bound, Requests
from loadtests.errors import LoadError

_SEEN = 0.95
"""How sure one wants to be that a percentile is not larger than what was seen."""

_BOUND = re.compile(
    r"(?:(?P<statistic>mean|max|p(?P<level>\d+(?:\.\d+)?))\s+)?(?P<quantity>\w+)\s*(?P<sign><=?)\s*"
    r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|%)"
)
_HOW = (
    "write `p99 ttft <= 500ms`, `mean e2e < 3s` or `error_rate <= 1%`: mean, max or a percentile from p0 to p100 of "
    f"{', '.join(QUANTITIES)}, in ms or s; or error_rate, in %"
)


@dataclass(frozen=True)
class Promise:
    """One bound. `limit` is in seconds, or of `error_rate` a share of 1; `level` is a percentile's, from 0 to 100."""

    text: str
    statistic: str
    """`mean`, `percentile` (0 is the least value, 100 the largest), or `` of `error_rate`."""
    level: float
    quantity: str
    strict: bool
    limit: float

    @classmethod
    def parse(cls, text: str) -> Promise:
        """`[STATISTIC] QUANTITY <= NUMBER UNIT`, or with `<`.

        STATISTIC is `mean`, `max` or a percentile such as `p50` or `p99.9`; QUANTITY one of `QUANTITIES`; UNIT `ms` or
        `s`. `error_rate <= 1%` has no statistic. Raises LoadError `invalid_parameter` for all else.
        """
        found = _BOUND.fullmatch(text.strip())
        if found is None:
            raise LoadError(f"the promise {text!r} can't be read; {_HOW}", "invalid_parameter")
        statistic, quantity, unit = found["statistic"] or "", found["quantity"], found["unit"]
        level = 100.0 if statistic == "max" else float(found["level"] or 0)
        if quantity == "error_rate":
            right = not statistic and unit == "%"
        else:
            right = quantity in QUANTITIES and bool(statistic) and unit != "%" and level <= 100
        if not right:
            raise LoadError(f"the promise {text!r} can't be read; {_HOW}", "invalid_parameter")
        limit = round(float(found["number"]) * {"ms": 1e-3, "s": 1.0, "%": 1e-2}[unit], 9)
        kind = "percentile" if statistic not in ("", "mean") else statistic
        return cls(" ".join(text.split()), kind, level, quantity, found["sign"] == "<", limit)

    def kept_by(self, values: Floats) -> Flags:
        """Which values keep it, to the nanosecond: records have microseconds, and differences of floats a hair more."""
        exact = np.round(values, 9)
        return exact < self.limit if self.strict else exact <= self.limit

    def judge(self, latencies: Latencies, requests: Requests) -> Bound:
        """Whether a run kept it; where nothing was measured it did not."""
        if self.quantity == "error_rate":
            found, samples = (requests.error_rate if requests.staying else None), requests.staying
        else:
            values = latencies.samples(self.quantity)
            found, samples = _statistic(values, self.statistic, self.level), len(values)
        kept = found is not None and bool(self.kept_by(np.array(found)))
        return Bound(self.text, found, self.limit, kept, samples, self._note(samples))

    def _note(self, samples: int) -> str:
        if not samples:
            return "nothing was measured"
        least = needed(self.level / 100 if self.statistic == "percentile" else 1 - self.limit)
        if self.statistic == "mean" or least is None or samples >= least:
            return ""
        what = "requests" if self.quantity != "itl" else "gaps"
        return f"{samples} {what} are too few to be {_SEEN:.0%} sure: it takes {least}"


def needed(share: float) -> int | None:
    """How many samples it takes until, with 95% confidence, the largest of them is above what a `share` of all stays
    below: the least n with share^n <= 5% (Wilks 1941), 299 for the 99th percentile, 59 for the 95th. As many must be
    seen without an error until one may say that fewer than one in a hundred fail. None for shares of 0 and 1.
    """
    return math.ceil(math.log(1 - _SEEN) / math.log(share)) if 0 < share < 1 else None


def _statistic(values: Floats, statistic: str, level: float) -> float | None:
    if not len(values):
        return None
    return float(values.mean() if statistic == "mean" else np.percentile(values, level))
