"""What a sweep makes of the records of its probe; its runs are tested with their command."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from inflight.commands.load.display import LoadProgressLines
from loadtests.analysis.columns import read_columns
from loadtests.analysis.summary import Summary
from loadtests.analysis.sweep import Sweep, SweepStep
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome, RequestRecord
from loadtests.report.page import sweep_page
from loadtests.report.write_reports import write_sweep_report
from loadtests.run.sweep_runner import SweepRunner, reevaluate_sweep, run_seed, sessions_per_second
from loadtests.run.worker_spec import WorkerSpec
from loadtests.run_directory import RunDirectory
from tests.fixtures.load_runs import write_run
from tests.fixtures.load_summaries import typical_summary


def record(session: int, turn: int, ended: float, outcome: RequestOutcome = RequestOutcome.COMPLETED) -> RequestRecord:
    return RequestRecord(0, session, turn, 0.0, 0.0, ended, outcome, 64)


LOST = [record(1, 0, 40.0, RequestOutcome.UNFINISHED), record(2, 0, 0.1, RequestOutcome.REJECTED)]


@pytest.mark.parametrize(
    ("records", "rate"),
    [
        # Sixteen users ask once in the ten seconds of the probe, and have their answers after 14 to 20 seconds.
        ([record(session, 0, 14 + 0.4 * session) for session in range(16)], 16 / 20),
        ([record(session, turn, 2.0 * (turn + 1)) for session in range(4) for turn in range(3)], 4 / 6),
        ([record(0, 0, 5.0), *LOST], 1 / 5),
        (LOST, 0),
    ],
)
def test_the_probes_rate_is_that_of_completed_sessions_until_the_last_answer(
    records: list[RequestRecord], rate: float, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", records, LoadPlan())
    assert sessions_per_second(read_columns(run.requests)) == pytest.approx(rate)


def test_what_was_found_before_the_server_died_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def step(sweeper: SweepRunner, rate: float, number: int, before: int) -> SweepStep:
        if number == 2:
            raise LoadError("no server answers at 127.0.0.1:1; check the address or start one", "server_unreachable")
        return SweepStep(rate, "01", typical_summary(), met=True)

    monkeypatch.setattr(SweepRunner, "_run_step", step)
    plan = LoadPlan(slo=("p99 ttft <= 1s",))
    sweeper = SweepRunner(
        plan, tmp_path, WorkerSpec(), lambda plan, title: nullcontext(LoadProgressLines(plan, title)), start=4.0
    )
    sweep = sweeper.sweep()
    assert ([step.rate for step in sweep.steps], sweep.highest) == ([4.0], 4.0)
    assert "no server answers" in sweep.failure
    assert "No further run could be made" in sweep_page(sweep)


def test_a_sweep_judged_anew_does_not_hold_above_a_rate_that_broke(tmp_path: Path) -> None:
    kept = {1.0: True, 2.0: False, 4.0: True}
    steps = tuple(SweepStep(rate, f"{rate:g}", typical_summary(), met=True) for rate in kept)
    write_sweep_report(Sweep(("p99 ttft <= 500ms",), steps, 0.1, highest=4.0), tmp_path)

    def judge(directory: RunDirectory) -> Summary:
        (bound, *_) = typical_summary().slo
        return replace(typical_summary(), slo=(replace(bound, met=kept[float(directory.path.name)]),))

    found = reevaluate_sweep(tmp_path, judge)
    assert (found.highest, found.lowest_missed, found.converged) == (1, 2, False)


def test_each_run_at_a_rate_has_a_seed_of_its_own_that_follows_from_the_plans() -> None:
    seeds = [run_seed(7, before) for before in range(4)]
    assert seeds[0] == 7
    assert len({*seeds, *(run_seed(8, before) for before in range(4))}) == 8
    assert seeds == [run_seed(7, before) for before in range(4)]
