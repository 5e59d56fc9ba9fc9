"""The search for the highest rate at which an SLO is met, in few runs. It makes none: it says which one next."""

from __future__ import annotations

import math
from collections import defaultdict

from loadtests.errors import LoadError


class RateSearch:
    """Asks for rates in turn (`next`), and is told of each whether the SLO was met there (`tell`).

    From `first` it doubles until the SLO is missed, or halves until it holds, then takes the geometric mean of the
    highest rate that held and the lowest that broke, until these are within the tolerance. A quiet minute keeps a
    SLO of 99th percentiles, and one hiccup of the machine breaks it: so first the highest and then the lowest
    broken one is tried once more where runs are left (the highest only if one more is left for what follows), and where
    runs at a rate disagree, a third decides. Never more than `most` runs. A rate at which as many broke as held counts
    as broken.

    With `whole`, rates are whole numbers, of users say, and neighbours are close enough.
    """

    def __init__(self, start: float, tolerance: float = 0.1, max_runs: int = 8, *, integral: bool = False) -> None:
        """Raises LoadError `invalid_parameter` for a first rate or a tolerance that is not above 0, or no run."""
        if not (start > 0 and math.isfinite(start)):
            raise LoadError(f"a sweep can't begin at a rate of {start:g}; give one above 0", "invalid_parameter")
        if not (tolerance > 0 and math.isfinite(tolerance)):
            raise LoadError(
                f"a tolerance of {tolerance:g} can't be used; give one above 0, such as 0.1", "invalid_parameter"
            )
        if max_runs < 1:
            raise LoadError(f"a sweep of {max_runs} runs finds nothing; allow 1 or more", "invalid_parameter")
        self._integral = integral
        self._start = float(max(1, round(start))) if integral else start
        self._tolerance = tolerance
        self._max_runs = max_runs
        self._results: dict[float, list[bool]] = defaultdict(list)

    def next(self) -> float | None:
        """The rate to try now; None when the search is over."""
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
        """What came of a run at that rate; also of one that the search did not ask for."""
        self._results[rate].append(met)

    @property
    def runs(self) -> int:
        return sum(map(len, self._results.values()))

    @property
    def lowest_missed(self) -> float | None:
        """The lowest rate at which the SLO was missed."""
        return min((rate for rate in self._results if not self._is_met(rate)), default=None)

    @property
    def highest(self) -> float | None:
        """The highest rate below all broken ones at which the SLO was met; None where it did at none."""
        limit = self.lowest_missed
        return max(
            (rate for rate in self._results if self._is_met(rate) and (limit is None or rate < limit)), default=None
        )

    @property
    def confirmed(self) -> bool:
        """The SLO was met at the highest rate more than once."""
        return self.highest is not None and sum(self._results[self.highest]) > 1

    @property
    def converged(self) -> bool:
        """The highest rate is known to within the tolerance, or to a whole number."""
        return self.highest is not None and self.lowest_missed is not None and self._close

    @property
    def _close(self) -> bool:
        highest, lowest_missed = self.highest, self.lowest_missed
        assert highest is not None
        assert lowest_missed is not None
        # A hair more, for the product of two roots is not quite what they are roots of.
        near = lowest_missed <= highest * (1 + self._tolerance) * (1 + 1e-9)
        return near or (self._integral and lowest_missed - highest <= 1)

    def _below(self, missed: float) -> float | None:
        if not self._integral:
            return missed / 2
        if missed > 1:
            return float(missed // 2)
        # Below one there is no whole number.
        return missed if self._tried_once(missed) else None

    def _between(self, low: float, high: float) -> float:
        mean = math.sqrt(low * high)
        return float(min(max(round(mean), low + 1), high - 1)) if self._integral else mean

    def _is_met(self, rate: float) -> bool:
        told = self._results[rate]
        return 2 * sum(told) > len(told)

    def _tried_once(self, rate: float) -> bool:
        return len(self._results[rate]) == 1

    def _tied(self, rate: float) -> bool:
        told = self._results[rate]
        return 2 * sum(told) == len(told)
