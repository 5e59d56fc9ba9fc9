"""Makes the runs of a sweep: rate after rate, until the highest is known at which the promise holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal, Protocol

from inflight_client import InflightError

from loadtests.analysis.report_file import read_sweep
from loadtests.analysis.search import Search
from loadtests.analysis.summary import Summary
from loadtests.analysis.sweep import USERS, Step, Sweep
from loadtests.conductor import Progress, make_run
from loadtests.errors import LoadError
from loadtests.plan import Arrivals, Plan
from loadtests.record import Outcome, Record
from loadtests.reporting import report_run
from loadtests.run_directory import RunDirectory
from loadtests.team import Team


class Follower(Protocol):
    """Shows the progress of one run, and what came of it."""

    def __call__(self, found: Progress) -> None: ...

    def ended(self, summary: Summary) -> None: ...


Follow = Callable[[Plan, str], AbstractContextManager[Follower]]
"""Shows one run, of that title."""

PROBE_USERS = 16
"""Of the short run that finds the first rate; a sweep by users begins with as many."""
_PROBE_SECONDS = 10.0
_PROBE_SHARE = 0.7
"""The first rate, as a share of what that many users got through without a pause: near the edge, rather below it."""


@dataclass(frozen=True)
class Sweeper:
    """Makes runs of `plan` under `directory`, each at a rate (or number of users) of its own.

    `first` is where the search begins; None: a short closed loop finds out what the server gets through, or if users
    are looked for it is PROBE_USERS.
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
        """All runs, or those before a Ctrl-C or a failure. Raises as `make_run` does where the first one fails."""
        search = Search(self.first or self._probe(), self.tolerance, self.most, whole=self.by == "users")
        steps: list[Step] = []
        failure, interrupted = "", False
        while (rate := search.next()) is not None and not interrupted:
            rate = _shown(rate)
            try:
                step = self._step(rate, len(steps) + 1, sum(before.rate == rate for before in steps))
            except (LoadError, InflightError) as error:
                if not steps:
                    raise
                failure = str(error)
                break
            if step is None:
                interrupted = True
            else:
                steps.append(step)
                search.tell(rate, step.kept)
        found = Sweep(
            self.plan.promise,
            tuple(steps),
            None,
            None,
            self.tolerance,
            False,
            self._unit,
            interrupted=interrupted,
            failure=failure,
        )
        return answered(found, search)

    @property
    def _unit(self) -> str:
        return "sessions/s" if self.by == "rate" else USERS

    def _step(self, rate: float, number: int, before: int) -> Step | None:
        """Its run, after `before` others at this rate; None if Ctrl-C ended it, for then it says nothing;
        KeyboardInterrupt if it was the first."""
        kind: Literal["rate", "users"] = self.by
        arrivals = self.plan.arrivals.model_copy(update={"kind": kind, "profile": f"{rate:g}"})
        name = f"{number:02}-{self.by}-{rate:g}"
        directory = RunDirectory.make(self.directory / name)
        plan = self.plan.model_copy(update={"arrivals": arrivals, "seed": seed_of(self.plan.seed, before)})
        with self.follow(plan, f"run {number}, {rate:g} {self._unit}") as shown:
            interrupted = make_run(plan, directory, self.team, shown)
        if interrupted and number == 1:
            raise KeyboardInterrupt
        summary, _ = report_run(directory, self.directory)
        shown.ended(summary)
        if interrupted:
            return None
        return _judged(rate, name, summary)

    def _probe(self) -> float:
        """What to begin with."""
        if self.by == "users":
            return float(PROBE_USERS)
        plan = self.plan.model_copy(
            update={
                "arrivals": Arrivals(kind="users", profile=str(PROBE_USERS)),
                "warmup": 0.0,
                "seconds": min(_PROBE_SECONDS, self.plan.seconds),
                "promise": (),
            }
        )
        directory = RunDirectory.make(self.directory / "00-probe")
        with self.follow(plan, "probe") as shown:
            if make_run(plan, directory, self.team, shown):
                raise KeyboardInterrupt
        summary, _ = report_run(directory, self.directory)
        shown.ended(summary)
        pace = sessions_per_second(directory.records())
        if not pace:
            first = next(iter(summary.requests.messages.values()), "no request was completed")
            raise LoadError(
                f"the server completed nothing in the {plan.seconds:g} s of a probe and its grace of {plan.grace:g} s, "
                f"so say by --start with which rate to begin: {first}",
                "load_failed",
            )
        return _shown(pace * _PROBE_SHARE)


def judged_anew(directory: Path, judge: Callable[[RunDirectory], Summary]) -> Sweep:
    """The sweep that lies in `directory`, as `judge` now finds its runs. Raises LoadError as `read_sweep` does."""
    sweep = read_sweep(directory / "sweep.json")
    if not sweep.steps:
        return sweep
    search = Search(sweep.steps[0].rate, sweep.tolerance, len(sweep.steps), whole=sweep.unit == USERS)
    steps: list[Step] = []
    for step in sweep.steps:
        steps.append(_judged(step.rate, step.run, judge(RunDirectory(directory / step.run))))
        search.tell(step.rate, steps[-1].kept)
    promise = tuple(bound.text for bound in steps[-1].summary.promise)
    return answered(replace(sweep, promise=promise, steps=tuple(steps)), search)


def seed_of(seed: int, before: int) -> int:
    """The seed of a run after `before` others at its rate: the plan's own, then others that follow from it, so that a
    run made again is a new draw of moments and prompts, and a sweep made again the same one."""
    return int.from_bytes(sha256(f"{seed}/{before}".encode()).digest()[:4], "big") if before else seed


def answered(sweep: Sweep, search: Search) -> Sweep:
    """With what the search found."""
    return replace(
        sweep,
        highest=search.highest,
        lowest_broken=search.lowest_broken,
        settled=search.settled,
        confirmed=search.confirmed,
        highest_due=sweep.due(search.highest),
        lowest_broken_due=sweep.due(search.lowest_broken),
    )


def _judged(rate: float, name: str, summary: Summary) -> Step:
    return Step(rate, name, summary, all(bound.kept for bound in summary.promise))


def _shown(rate: float) -> float:
    """Four digits, as its profile is written; users are whole numbers already."""
    return float(f"{rate:.4g}")


def sessions_per_second(records: Sequence[Record]) -> float:
    """Until the last answer was there, so that answers longer than the probe count too; 0 where there was none."""
    completed = [record for record in records if record.outcome is Outcome.COMPLETED]
    last = max((record.ended for record in completed), default=0.0)
    return len({record.session for record in completed}) / last if last > 0 else 0.0
