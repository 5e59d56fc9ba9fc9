"""Makes the runs of a sweep: rate after rate, until the highest is known at which the promise holds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loadtests.analysis.search import Search
from loadtests.analysis.sweep import Step, Sweep
from loadtests.conductor import Progress, make_run
from loadtests.errors import LoadError
from loadtests.plan import Arrivals, Plan
from loadtests.reporting import report_run
from loadtests.run_directory import RunDirectory
from loadtests.team import Team

Follow = Callable[[Plan, str], AbstractContextManager[Callable[[Progress], None]]]
"""Shows the progress of one run, of that title."""

_PROBE_USERS = 16
_PROBE_SECONDS = 10.0
_PROBE_SHARE = 0.7
"""The first rate, as a share of what that many users got through without a pause: near the edge, rather below it."""


@dataclass(frozen=True)
class Sweeper:
    """Makes runs of `plan` under `directory`, each at a rate (or number of users) of its own.

    `first` is where the search begins; None: a short closed loop finds out what the server gets through.
    """

    plan: Plan
    directory: Path
    team: Team
    follow: Follow
    by: Literal["rate", "users"] = "rate"
    first: float | None = None
    tolerance: float = 0.1
    most: int = 8

    def sweep(self) -> Sweep:
        """All runs, or those that came before a Ctrl-C. Raises LoadError as `make_run` does."""
        search = Search(self.first or self._probe(), self.tolerance, self.most)
        steps: list[Step] = []
        step: Step | None
        while (rate := search.next()) is not None:
            rate = self._shown(rate)
            if self.by == "users" and [step.rate for step in steps].count(rate) > 1:
                break  # between two whole numbers there is no third
            step = self._step(rate, len(steps) + 1)
            if step is None:
                break
            steps.append(step)
            search.tell(rate, step.kept)
        return Sweep(
            self.plan.promise,
            tuple(steps),
            search.highest,
            search.lowest_broken,
            self.tolerance,
            search.settled,
            "sessions/s" if self.by == "rate" else "users",
            interrupted=step is None,
        )

    def _shown(self, rate: float) -> float:
        """Four digits of a rate, as its profile is written; a whole number of users."""
        return float(f"{rate:.4g}") if self.by == "rate" else float(max(1, round(rate)))

    def _step(self, rate: float, number: int) -> Step | None:
        """Its run; None if Ctrl-C ended it, for then it says nothing; KeyboardInterrupt if it was the first."""
        kind: Literal["rate", "users"] = self.by
        arrivals = self.plan.arrivals.model_copy(update={"kind": kind, "profile": f"{rate:g}"})
        name = f"{number:02}-{self.by}-{rate:g}"
        directory = RunDirectory.make(self.directory / name)
        plan = self.plan.model_copy(update={"arrivals": arrivals})
        with self.follow(plan, f"{rate:g} {self.by}") as tell:
            interrupted = make_run(plan, directory, self.team, tell)
        if interrupted and number == 1:
            raise KeyboardInterrupt
        summary, _ = report_run(directory)
        if interrupted:
            return None
        return Step(rate, name, summary, all(bound.kept for bound in summary.promise))

    def _probe(self) -> float:
        """What to begin with."""
        if self.by == "users":
            return float(_PROBE_USERS)
        plan = self.plan.model_copy(
            update={
                "arrivals": Arrivals(kind="users", profile=str(_PROBE_USERS)),
                "warmup": 0.0,
                "seconds": min(_PROBE_SECONDS, self.plan.seconds),
                "promise": (),
            }
        )
        directory = RunDirectory.make(self.directory / "00-probe")
        with self.follow(plan, "probe") as tell:
            if make_run(plan, directory, self.team, tell):
                raise KeyboardInterrupt
        summary, _ = report_run(directory)
        if not summary.completed_per_second:
            first = next(iter(summary.requests.messages.values()), "no request was completed")
            raise LoadError(f"the server completed nothing, so there is no rate to begin with: {first}", "load_failed")
        return self._shown(summary.completed_per_second * _PROBE_SHARE)
