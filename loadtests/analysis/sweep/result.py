"""Runs at several rates, made to find the highest at which the SLO is met."""

from __future__ import annotations

from dataclasses import dataclass

from loadtests.analysis.summary import Summary

USERS = "users"
"""The unit of a sweep of closed loops."""


@dataclass(frozen=True)
class SweepStep:
    """One run: at which rate (sessions a second, or users) it was asked for, in which directory, what came of it.

    `met` says that all SLOs were met.
    """

    rate: float
    run: str
    summary: Summary
    met: bool


@dataclass(frozen=True)
class Sweep:
    """All runs in the order in which they were made; a rate may have been tried more than once.

    `highest` is the highest rate at which the SLO was found to hold, `lowest_missed` the lowest above it at which
    it was not; None where there was none. `settled` says that they are within the tolerance, a ratio less 1;
    otherwise the search had no runs left. `confirmed` says that the SLO was met at `highest` in more runs than one.

    These are rates as they were asked for. In a short run of random arrivals more or fewer sessions are due:
    `highest_due` and `lowest_missed_due` are the rates that were really due, on average over the runs at that rate.
    """

    slo: tuple[str, ...]
    steps: tuple[SweepStep, ...]
    highest: float | None
    lowest_missed: float | None
    tolerance: float
    converged: bool
    unit: str = "sessions/s"
    """Or `users`, of closed loops."""
    interrupted: bool = False
    """Ctrl-C ended the search."""
    confirmed: bool = False
    failure: str = ""
    """Why no further run could be made, in a sentence: the server died, say. Those before count."""
    highest_due: float | None = None
    lowest_missed_due: float | None = None

    def actual_rate(self, rate: float | None) -> float | None:
        """The rate that was really due in the runs at this rate, on average; users are as many as were asked for."""
        found = [actual_session_rate(step) for step in self.steps_at(rate)]
        return sum(found) / len(found) if found and self.unit != USERS else rate

    def steps_at(self, rate: float | None) -> list[SweepStep]:
        """The runs at this rate."""
        return [step for step in self.steps if step.rate == rate]

    @property
    def overlaps(self) -> bool:
        """No more was due where the SLO was missed than where it held: the runs are too short for these rates."""
        held, broke = self.actual_rate(self.highest), self.actual_rate(self.lowest_missed)
        return held is not None and broke is not None and held >= broke

    @property
    def best(self) -> SweepStep | None:
        """The last run at the highest rate that met the SLO."""
        kept = [step for step in self.steps_at(self.highest) if step.met]
        return kept[-1] if kept else None


def actual_session_rate(step: SweepStep) -> float:
    """Sessions a second that were really due in a run; of a report that does not say it, those asked for."""
    found = step.summary.offered_sessions_per_second
    return step.rate if found is None else found
