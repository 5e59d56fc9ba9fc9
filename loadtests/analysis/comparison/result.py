"""What a comparison of runs found: each figure of both sides, its change, and a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from loadtests.analysis.summary import AuditCheck


class ChangeVerdict(str, Enum):
    """What the interval says about a change."""

    BETTER = "better"
    WORSE = "worse"
    NOT_SHOWN = "no change shown"
    """The interval contains no change: there may be none, or one too small for this number of requests."""
    TOO_FEW = "too few requests"
    """Too few or too strongly correlated measurements for a meaningful interval."""
    DIFFERENT_PLANS = "different plans"
    """The two sides had different plans."""
    BUNCHED = "tokens in bunches"
    """Tokens arrived several at once, so the gaps between them are not those of the server."""

    @property
    def label(self) -> str:
        """A short form for tables."""
        return _LABELS.get(self, self.value)


_LABELS = {
    ChangeVerdict.TOO_FEW: "n/a (few)",
    ChangeVerdict.DIFFERENT_PLANS: "n/a (plans differ)",
    ChangeVerdict.BUNCHED: "n/a (bunched)",
}


@dataclass(frozen=True)
class Change:
    """One figure before and after the change.

    `before` and `after` are in `unit` (`s`, `tokens/s`, or `share` of 1). `change` is after / before if `relative`,
    otherwise after - before; `low` and `high` are the ends of its confidence interval. All are None if a side has no
    such figure. `regression`: the whole interval is worse than the threshold, or the figure does not exist after the
    change because nothing was completed (then without an interval). `before_interval` and `after_interval` are the
    confidence intervals of the figures themselves.
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
    before_interval: tuple[float, float] | None = None
    after_interval: tuple[float, float] | None = None


BEFORE_AND_AFTER = ("before", "after")
SERVERS = ("server", "against")
"""The names of the sides if they are two servers under the same load: neither came first, and none is a regression."""


@dataclass(frozen=True)
class Comparison:
    """All figures of two sides, each one or several runs, named by their directories.

    `names` are those of the sides, `BEFORE_AND_AFTER` or `SERVERS`; of servers, the second one takes the place of what
    is after the change. `threshold` is relative (0.05: 5% slower is a regression; None: nothing is a regression);
    `points` is the same for shares, as a fraction of 1.
    `confidence` is that of each single interval. `warnings` are sentences: differences between plans, unreliable runs,
    limits of a comparison of few runs.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    threshold: float | None
    points: float
    confidence: float
    changes: tuple[Change, ...]
    warnings: tuple[str, ...]
    served: tuple[str, ...] = ()
    """The served model of each run, those before first; empty texts if the server did not report it."""
    plans_differ: bool = False
    """Whether the runs have different plans, so that no change was judged."""
    encoder: bool = False
    """Whether all runs are of an encoder, so that there are no figures of tokens that arrive."""
    names: tuple[str, str] = BEFORE_AND_AFTER
    audits: Mapping[str, tuple[AuditCheck, ...]] = field(default_factory=dict)
    """The audit of each side, by its name; none without audits."""

    def label(self, verdict: ChangeVerdict) -> str:
        """Return a verdict in a short form for tables."""
        if self.names == BEFORE_AND_AFTER:
            return verdict.label
        words = {
            ChangeVerdict.BETTER: f"{self.names[1]} is better",
            ChangeVerdict.WORSE: f"{self.names[0]} is better",
            ChangeVerdict.NOT_SHOWN: "cannot tell",
        }
        return words.get(verdict, verdict.label)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def inconclusive(self) -> bool:
        """Whether too few requests were made to judge most of the figures, and none is a regression."""
        few = sum(change.verdict is ChangeVerdict.TOO_FEW for change in self.changes)
        return not self.plans_differ and not self.regressions and 2 * few > len(self.changes)

    @property
    def regressions(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.regression)
