"""The search for the highest rate at which a promise holds, in few runs. It makes none: it says which one next."""

from __future__ import annotations

import math
from collections import defaultdict

from loadtests.errors import LoadError


class Search:
    """Asks for rates in turn (`next`), and is told of each whether the promise was kept there (`tell`).

    From `first` it doubles until the promise breaks, or halves until it holds, then takes the geometric mean of the
    highest rate that held and the lowest that broke, until these are within the tolerance. A quiet minute keeps a
    promise of 99th percentiles, and one hiccup of the machine breaks it: so first the highest and then the lowest
    broken one is tried once more where runs are left (the highest only if one more is left for what follows), and where
    runs at a rate disagree, a third decides. Never more than `most` runs. A rate at which as many broke as held counts
    as broken.

    With `whole`, rates are whole numbers, of users say, and neighbours are close enough.
    """

    def __init__(self, first: float, tolerance: float = 0.1, most: int = 8, *, whole: bool = False) -> None:
        """Raises LoadError `invalid_parameter` for a first rate or a tolerance that is not above 0, or no run."""
        if not (first > 0 and math.isfinite(first)):
            raise LoadError(f"a sweep can't begin at a rate of {first:g}; give one above 0", "invalid_parameter")
        if not (tolerance > 0 and math.isfinite(tolerance)):
            raise LoadError(
                f"a tolerance of {tolerance:g} can't be used; give one above 0, such as 0.1", "invalid_parameter"
            )
        if most < 1:
            raise LoadError(f"a sweep of {most} runs finds nothing; allow 1 or more", "invalid_parameter")
        self._whole = whole
        self._first = float(max(1, round(first))) if whole else first
        self._tolerance = tolerance
        self._most = most
        self._told: dict[float, list[bool]] = defaultdict(list)

    def next(self) -> float | None:
        """The rate to try now; None when the search is over."""
        if self.runs >= self._most:
            return None
        highest, lowest_broken = self.highest, self.lowest_broken
        if lowest_broken is None:
            return self._first if highest is None else 2 * highest
        if highest is None:
            return lowest_broken if self._tied(lowest_broken) else self._below(lowest_broken)
        if not self._close:
            return self._between(highest, lowest_broken)
        if self._tied(lowest_broken):
            return lowest_broken
        if self._once(highest) and self.runs < self._most - 1:
            return highest
        return lowest_broken if self._once(lowest_broken) else None

    def tell(self, rate: float, kept: bool) -> None:
        """What came of a run at that rate; also of one that the search did not ask for."""
        self._told[rate].append(kept)

    @property
    def runs(self) -> int:
        return sum(map(len, self._told.values()))

    @property
    def lowest_broken(self) -> float | None:
        """The lowest rate at which the promise broke."""
        return min((rate for rate in self._told if not self._held(rate)), default=None)

    @property
    def highest(self) -> float | None:
        """The highest rate below all broken ones at which the promise held; None where it did at none."""
        limit = self.lowest_broken
        return max((rate for rate in self._told if self._held(rate) and (limit is None or rate < limit)), default=None)

    @property
    def confirmed(self) -> bool:
        """The promise held at the highest rate more than once."""
        return self.highest is not None and sum(self._told[self.highest]) > 1

    @property
    def settled(self) -> bool:
        """The highest rate is known to within the tolerance, or to a whole number."""
        return self.highest is not None and self.lowest_broken is not None and self._close

    @property
    def _close(self) -> bool:
        highest, lowest_broken = self.highest, self.lowest_broken
        assert highest is not None
        assert lowest_broken is not None
        # A hair more, for the product of two roots is not quite what they are roots of.
        near = lowest_broken <= highest * (1 + self._tolerance) * (1 + 1e-9)
        return near or (self._whole and lowest_broken - highest <= 1)

    def _below(self, broken: float) -> float | None:
        if not self._whole:
            return broken / 2
        if broken > 1:
            return float(broken // 2)
        # Below one there is no whole number.
        return broken if self._once(broken) else None

    def _between(self, low: float, high: float) -> float:
        mean = math.sqrt(low * high)
        return float(min(max(round(mean), low + 1), high - 1)) if self._whole else mean

    def _held(self, rate: float) -> bool:
        told = self._told[rate]
        return 2 * sum(told) > len(told)

    def _once(self, rate: float) -> bool:
        return len(self._told[rate]) == 1

    def _tied(self, rate: float) -> bool:
        told = self._told[rate]
        return 2 * sum(told) == len(told)
