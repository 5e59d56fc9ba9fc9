"""The search for the highest rate that meets the SLO."""

from __future__ import annotations

import math
from collections import defaultdict

from loadtests.errors import LoadError


class RateSearch:
    """Proposes rates (`next`) and records whether the SLO was met at each (`record`).

    From `start` the rate is doubled until the SLO is missed, or halved until it is met. Then the search takes the
    geometric mean of the highest rate that met it and the lowest that missed it, until these are within the tolerance.
    Chance may let a rate meet an SLO on 99th percentiles, and one hiccup of the machine misses it. Therefore, if runs
    are left, first the highest and then the lowest missed rate is tried again (the highest only if another run is left
    afterwards), and if runs at a rate disagree, a third one decides. Never more than `max_runs` runs. A rate with as
    many misses as successes counts as missed.

    With `integral`, rates are whole numbers, such as users, and the search ends at neighbouring numbers.
    """

    def __init__(self, start: float, tolerance: float = 0.1, max_runs: int = 8, *, integral: bool = False) -> None:
        """Raises LoadError `invalid_parameter` unless rate and tolerance are above 0 and `max_runs` at least 1."""
        if not (start > 0 and math.isfinite(start)):
            raise LoadError(f"a sweep cannot start at a rate of {start:g}; give a rate above 0", "invalid_parameter")
        if not (tolerance > 0 and math.isfinite(tolerance)):
            raise LoadError(
                f"a tolerance of {tolerance:g} is invalid; give one above 0, such as 0.1", "invalid_parameter"
            )
        if max_runs < 1:
            raise LoadError(f"a sweep needs at least 1 run, not {max_runs}; raise --max-runs", "invalid_parameter")
        self._integral = integral
        self._start = float(max(1, round(start))) if integral else start
        self._tolerance = tolerance
        self._max_runs = max_runs
        self._results: dict[float, list[bool]] = defaultdict(list)

    def next(self) -> float | None:
        """Return the rate to try next; None when the search is over."""
        if self.runs >= self._max_runs:
            return None
        highest, lowest_missed = self.highest, self.lowest_missed
        if lowest_missed is None:
            return self._start if highest is None else 2 * highest
        if highest is None:
            return lowest_missed if self._tied(lowest_missed) else self._below(lowest_missed)
        if not self._close:
            return self._between(highest, lowest_missed)
        if self._tied(lowest_missed):
            return lowest_missed
        if self._tried_once(highest) and self.runs < self._max_runs - 1:
            return highest
        return lowest_missed if self._tried_once(lowest_missed) else None

    def record(self, rate: float, met: bool) -> None:
        """Record the result of a run, also at a rate that the search did not propose."""
        self._results[rate].append(met)

    @property
    def runs(self) -> int:
        return sum(map(len, self._results.values()))

    @property
    def lowest_missed(self) -> float | None:
        """The lowest rate that missed the SLO."""
        return min((rate for rate in self._results if not self._is_met(rate)), default=None)

    @property
    def highest(self) -> float | None:
        """The highest rate below all missed ones that met the SLO; None if there is none."""
        limit = self.lowest_missed
        return max(
            (rate for rate in self._results if self._is_met(rate) and (limit is None or rate < limit)), default=None
        )

    @property
    def confirmed(self) -> bool:
        """Whether the SLO was met at the highest rate more than once."""
        return self.highest is not None and sum(self._results[self.highest]) > 1

    @property
    def converged(self) -> bool:
        """Whether the highest rate is known to within the tolerance, or to a whole number."""
        return self.highest is not None and self.lowest_missed is not None and self._close

    @property
    def _close(self) -> bool:
        highest, lowest_missed = self.highest, self.lowest_missed
        assert highest is not None
        assert lowest_missed is not None
        # Allow for rounding: the product of two square roots is not exact.
        near = lowest_missed <= highest * (1 + self._tolerance) * (1 + 1e-9)
        return near or (self._integral and lowest_missed - highest <= 1)

    def _below(self, missed: float) -> float | None:
        if not self._integral:
            return missed / 2
        if missed > 1:
            return float(missed // 2)
        # There is no whole number below one.
        return missed if self._tried_once(missed) else None

    def _between(self, low: float, high: float) -> float:
        mean = math.sqrt(low * high)
        return float(min(max(round(mean), low + 1), high - 1)) if self._integral else mean

    def _is_met(self, rate: float) -> bool:
        results = self._results[rate]
        return 2 * sum(results) > len(results)

    def _tried_once(self, rate: float) -> bool:
        return len(self._results[rate]) == 1

    def _tied(self, rate: float) -> bool:
        results = self._results[rate]
        return 2 * sum(results) == len(results)
