"""The result of a sweep."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from loadtests.analysis.summary import Summary

USERS = "users"
"""The unit of a sweep of closed loops."""


@dataclass(frozen=True)
class SweepStep:
    """One run of a sweep: the requested rate (sessions per second, or users), its directory and its figures.

    `met` means that all SLOs were met.
    """

    rate: float
    run: str
    summary: Summary
    met: bool


@dataclass(frozen=True)
class Sweep:
    """All runs in order; a rate may have been tried more than once.

    `highest` is the highest rate that met the SLO, `lowest_missed` the lowest rate above it that missed it; None if
    there is none. `converged` means that they are within the tolerance (a ratio minus 1); otherwise the search ran out
    of runs. `confirmed` means that the SLO was met at `highest` in more than one run.

    These are the requested rates. A short run with random arrivals may have more or fewer sessions: `highest_due` and
    `lowest_missed_due` are the mean actual rates of the runs at that rate.
    """

    slo: tuple[str, ...]
    steps: tuple[SweepStep, ...]
    tolerance: float
    unit: str = "sessions/s"
    """Or `users`, for closed loops."""
    highest: float | None = None
    lowest_missed: float | None = None
    converged: bool = False
    interrupted: bool = False
    """Ctrl-C ended the search."""
    confirmed: bool = False
    failure: str = ""
    """Why no further run was possible, for example because the server died. The earlier runs count."""
    highest_due: float | None = None
    lowest_missed_due: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON, as `Summary.as_json` does."""
        steps = [{**asdict(step), "summary": step.summary.as_json()} for step in self.steps]
        return {**asdict(self), "steps": steps}

    def actual_rate(self, rate: float | None) -> float | None:
        """Return the mean actual rate of the runs at this requested rate; for users, the requested number."""
        rates = [actual_session_rate(step) for step in self.steps_at(rate)]
        return sum(rates) / len(rates) if rates and self.unit != USERS else rate

    def steps_at(self, rate: float | None) -> list[SweepStep]:
        """Return the runs at this rate."""
        return [step for step in self.steps if step.rate == rate]

    @property
    def overlaps(self) -> bool:
        """Whether the actual load was no higher where the SLO was missed than where it was met."""
        held, broke = self.actual_rate(self.highest), self.actual_rate(self.lowest_missed)
        return held is not None and broke is not None and held >= broke

    @property
    def best(self) -> SweepStep | None:
        """The last run at the highest rate that met the SLO."""
        kept = [step for step in self.steps_at(self.highest) if step.met]
        return kept[-1] if kept else None


def actual_session_rate(step: SweepStep) -> float:
    """Return the actual sessions per second of a run, or the requested rate if its report lacks it."""
    rate = step.summary.offered_sessions_per_second
    return step.rate if rate is None else rate
