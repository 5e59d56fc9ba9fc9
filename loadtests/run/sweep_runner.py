"""Runs a sweep: one rate after another, until the highest one that meets the SLO is known."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal, Protocol

from inflight_client import InflightError

from loadtests.analysis.columns import Columns, read_columns
from loadtests.analysis.rate_search import RateSearch
from loadtests.analysis.slo import parse_slos
from loadtests.analysis.summary import Summary
from loadtests.analysis.sweep import USERS, Sweep, SweepStep
from loadtests.errors import LoadError
from loadtests.plan import Arrivals, LoadPlan
from loadtests.record import RequestOutcome
from loadtests.report.write_reports import read_figures, write_run_report
from loadtests.run.controller import RunProgress, run_load_test
from loadtests.run.worker_spec import WorkerSpec
from loadtests.run_directory import RunDirectory


class RunDisplay(Protocol):
    """Shows the progress of one run, and its result."""

    def __call__(self, progress: RunProgress) -> None: ...

    def finish(self, summary: Summary) -> None: ...


ShowRun = Callable[[LoadPlan, str], AbstractContextManager[RunDisplay]]
"""Creates the display of one run with this title."""

PROBE_USERS = 16
"""Users of the short run that finds the first rate; a sweep by users starts with this number."""
_PROBE_SECONDS = 10.0
_PROBE_FRACTION = 0.7
"""The first rate, as a fraction of the throughput of that short run: close to the limit, rather below it."""


@dataclass(frozen=True)
class SweepRunner:
    """Runs `plan` under `directory` at different rates or numbers of users.

    `start` is where the search begins. None: a short closed loop measures the server's throughput; for a search by
    users it is PROBE_USERS.
    """

    plan: LoadPlan
    directory: Path
    workers: WorkerSpec
    show_run: ShowRun
    by: Literal["rate", "users"] = "rate"
    start: float | None = None
    tolerance: float = 0.1
    max_runs: int = 8

    def sweep(self) -> Sweep:
        """Return all runs, or those before a Ctrl-C or a failure. Raises as `run_load_test` does if the first run
        fails."""
        search = RateSearch(self.start or self._probe(), self.tolerance, self.max_runs, integral=self.by == "users")
        steps: list[SweepStep] = []
        failure, interrupted = "", False
        while (rate := search.next()) is not None and not interrupted:
            rate = _round_rate(rate)
            try:
                step = self._run_step(rate, len(steps) + 1, sum(before.rate == rate for before in steps))
            except (LoadError, InflightError) as error:
                if not steps:
                    raise
                failure = str(error)
                break
            if step is None:
                interrupted = True
            else:
                steps.append(step)
                search.record(rate, step.met)
        slo = tuple(bound.text for bound in parse_slos(self.plan.slo))
        found = Sweep(slo, tuple(steps), self.tolerance, self._unit, interrupted=interrupted, failure=failure)
        return with_result(found, search)

    @property
    def _unit(self) -> str:
        return "sessions/s" if self.by == "rate" else USERS

    def _run_step(self, rate: float, number: int, earlier_runs: int) -> SweepStep | None:
        """Run at this rate, after `earlier_runs` others at it; None if Ctrl-C interrupted it, which makes it worthless;
        KeyboardInterrupt if it was the first."""
        kind: Literal["rate", "users"] = self.by
        arrivals = self.plan.arrivals.model_copy(update={"kind": kind, "profile": f"{rate:g}"})
        name = f"{number:02}-{self.by}-{rate:g}"
        directory = RunDirectory.create(self.directory / name)
        plan = self.plan.model_copy(update={"arrivals": arrivals, "seed": run_seed(self.plan.seed, earlier_runs)})
        with self.show_run(plan, f"run {number}, {rate:g} {self._unit}") as shown:
            interrupted = run_load_test(plan, directory, self.workers, shown)
        if interrupted and number == 1:
            raise KeyboardInterrupt
        summary, _ = write_run_report(directory, self.directory)
        shown.finish(summary)
        if interrupted:
            return None
        return _make_step(rate, name, summary)

    def _probe(self) -> float:
        """Return the rate to start with."""
        if self.by == "users":
            return float(PROBE_USERS)
        plan = self.plan.model_copy(
            update={
                "arrivals": Arrivals(kind="users", profile=str(PROBE_USERS)),
                "warmup": 0.0,
                "seconds": min(_PROBE_SECONDS, self.plan.seconds),
                "slo": (),
            }
        )
        directory = RunDirectory.create(self.directory / "00-probe")
        with self.show_run(plan, "probe") as shown:
            if run_load_test(plan, directory, self.workers, shown):
                raise KeyboardInterrupt
        summary, _ = write_run_report(directory, self.directory)
        shown.finish(summary)
        pace = sessions_per_second(read_columns(directory.requests))
        if not pace:
            first = next(iter(summary.requests.messages.values()), "no request was completed")
            raise LoadError(
                f"the server completed no request in a probe of {plan.seconds:g} s and {plan.drain_seconds:g} s of "
                f"drain, so give the first rate with --start: {first}",
                "load_failed",
            )
        return _round_rate(pace * _PROBE_FRACTION)


def reevaluate_sweep(directory: Path, evaluate: Callable[[RunDirectory], Summary]) -> Sweep:
    """Return the sweep in `directory`, its runs evaluated by `evaluate`. Raises LoadError as `read_figures` does."""
    sweep = read_figures(directory / "sweep.json", Sweep)
    if not sweep.steps:
        return sweep
    search = RateSearch(sweep.steps[0].rate, sweep.tolerance, len(sweep.steps), integral=sweep.unit == USERS)
    steps: list[SweepStep] = []
    for step in sweep.steps:
        steps.append(_make_step(step.rate, step.run, evaluate(RunDirectory(directory / step.run))))
        search.record(step.rate, steps[-1].met)
    slo = tuple(bound.text for bound in steps[-1].summary.slo)
    return with_result(replace(sweep, slo=slo, steps=tuple(steps)), search)


def run_seed(seed: int, earlier_runs: int) -> int:
    """Return the seed of a run after `earlier_runs` others at its rate: the plan's own, then others derived from it. A
    repeated run has new random times and prompts, and a repeated sweep the same ones."""
    return int.from_bytes(sha256(f"{seed}/{earlier_runs}".encode()).digest()[:4], "big") if earlier_runs else seed


def with_result(sweep: Sweep, search: RateSearch) -> Sweep:
    """Return the sweep with the result of the search."""
    return replace(
        sweep,
        highest=search.highest,
        lowest_missed=search.lowest_missed,
        converged=search.converged,
        confirmed=search.confirmed,
        highest_due=sweep.actual_rate(search.highest),
        lowest_missed_due=sweep.actual_rate(search.lowest_missed),
    )


def _make_step(rate: float, name: str, summary: Summary) -> SweepStep:
    return SweepStep(rate, name, summary, all(bound.met for bound in summary.slo))


def _round_rate(rate: float) -> float:
    """Round to four digits, as in its profile; users are whole numbers already."""
    return float(f"{rate:.4g}")


def sessions_per_second(columns: Columns) -> float:
    """Return the rate until the last answer, so that answers longer than the probe count too; 0 without any."""
    completed = columns.with_outcome(RequestOutcome.COMPLETED)
    last = float(columns.ended[completed].max(initial=0.0))
    return len(set(columns.session[completed].tolist())) / last if last > 0 else 0.0
