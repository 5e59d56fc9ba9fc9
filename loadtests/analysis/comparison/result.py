"""What came of comparing runs: how much each figure changed, how sure that is, and whether it is a regression."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ChangeVerdict(str, Enum):
    """What the interval says of a change."""

    BETTER = "better"
    WORSE = "worse"
    NOT_SHOWN = "no change shown"
    """The interval has no change in it: there may be none, or one too small for so few requests."""
    TOO_FEW = "too few requests"
    """Too little was measured, or too much of it hangs together, for an interval that means anything."""
    DIFFERENT_PLANS = "different plans"
    """The two sides were not asked for the same."""
    BUNCHED = "tokens in bunches"
    """Tokens came several at once, so gaps between them are not those of the server."""

    @property
    def label(self) -> str:
        """As tables have it: short, and the same wherever it is."""
        return _LABELS.get(self, self.value)


_LABELS = {
    ChangeVerdict.TOO_FEW: "n/a (few)",
    ChangeVerdict.DIFFERENT_PLANS: "n/a (plans differ)",
    ChangeVerdict.BUNCHED: "n/a (bunched)",
}


@dataclass(frozen=True)
class Change:
    """One figure before and after.

    `before` and `after` are in `unit` (`s`, `tokens/s`, or `share` of 1). `change` is after / before where `relative`,
    and after - before of shares; `low` and `high` are the ends of its confidence interval. All are None where a side
    has no such figure. `regression`: worse by more than the threshold, even at the interval's near end; or the figure
    was there before and is not any more, for nothing was completed (there is no interval then).
    """

    metric: str
    unit: str
    relative: bool
    before: float | None
    after: float | None
    change: float | None
    low: float | None
    high: float | None
    samples_before: int
    samples_after: int
    verdict: ChangeVerdict
    regression: bool
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """All figures of two sides, one run or several each, named by their directories.

    `threshold` is relative (0.05: 5% slower is a regression), `points` the same for shares, in shares of 1.
    `confidence` is of each interval by itself. `warnings` are sentences: how the plans differ, which runs were not on
    schedule, what a comparison of so few runs can't know.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    threshold: float
    points: float
    confidence: float
    changes: tuple[Change, ...]
    warnings: tuple[str, ...]
    served: tuple[str, ...] = ()
    """What each run was made against, those before first; empty texts where the server told nothing."""
    plans_differ: bool = False
    """The runs have different plans and no change was judged."""

    @property
    def regressions(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.regression)
