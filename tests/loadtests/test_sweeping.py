"""What a sweep makes of the records of its probe; its runs are tested with their command."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from inflight.commands.load_screen import Lines
from loadtests.analysis.summary import Summary
from loadtests.analysis.sweep import Step, Sweep
from loadtests.errors import LoadError
from loadtests.plan import Plan
from loadtests.record import Outcome, Record
from loadtests.report.page import sweep_page
from loadtests.reporting import report_sweep
from loadtests.run_directory import RunDirectory
from loadtests.sweeping import Sweeper, judged_anew, seed_of, sessions_per_second
from loadtests.team import Team
from tests.loadtests.report.summaries import usual


def record(session: int, turn: int, ended: float, outcome: Outcome = Outcome.COMPLETED) -> Record:
    return Record(0, session, turn, 0.0, 0.0, ended, outcome, 64)


def test_answers_longer_than_the_probe_count_until_the_last_of_them() -> None:
    """Sixteen users ask once in the ten seconds of the probe, and have their answers after 14 to 20 seconds."""
    records = [record(session, 0, 14 + 0.4 * session) for session in range(16)]
    assert sessions_per_second(records) == pytest.approx(16 / 20)


def test_turns_of_one_conversation_are_one_session() -> None:
    records = [record(session, turn, 2.0 * (turn + 1)) for session in range(4) for turn in range(3)]
    assert sessions_per_second(records) == pytest.approx(4 / 6)


def test_what_was_not_completed_makes_no_rate() -> None:
    lost = [record(1, 0, 40.0, Outcome.UNFINISHED), record(2, 0, 0.1, Outcome.REJECTED)]
    assert sessions_per_second([record(0, 0, 5.0), *lost]) == pytest.approx(1 / 5)
    assert sessions_per_second(lost) == 0


def test_what_was_found_before_the_server_died_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def step(sweeper: Sweeper, rate: float, number: int, before: int) -> Step:
        if number == 2:
            raise LoadError("no server answers at 127.0.0.1:1; check the address or start one", "server_unreachable")
        return Step(rate, "01", usual(), kept=True)

    monkeypatch.setattr(Sweeper, "_step", step)
    plan = Plan(promise=("p99 ttft <= 1s",))
    sweeper = Sweeper(plan, tmp_path, Team(), lambda plan, title: nullcontext(Lines(plan, title)), first=4.0)
    sweep = sweeper.sweep()
    assert ([step.rate for step in sweep.steps], sweep.highest) == ([4.0], 4.0)
    assert "no server answers" in sweep.failure
    assert "No further run could be made" in sweep_page(sweep)


def test_a_sweep_judged_anew_does_not_hold_above_a_rate_that_broke(tmp_path: Path) -> None:
    kept = {1.0: True, 2.0: False, 4.0: True}
    steps = tuple(Step(rate, f"{rate:g}", usual(), kept=True) for rate in kept)
    report_sweep(Sweep(("p99 ttft <= 500ms",), steps, 4.0, None, 0.1, False), tmp_path)

    def judge(directory: RunDirectory) -> Summary:
        (bound, *_) = usual().promise
        return replace(usual(), promise=(replace(bound, kept=kept[float(directory.path.name)]),))

    found = judged_anew(tmp_path, judge)
    assert (found.highest, found.lowest_broken, found.settled) == (1, 2, False)


def test_each_run_at_a_rate_has_a_seed_of_its_own_that_follows_from_the_plans() -> None:
    seeds = [seed_of(7, before) for before in range(4)]
    assert seeds[0] == 7
    assert len({*seeds, *(seed_of(8, before) for before in range(4))}) == 8
    assert seeds == [seed_of(7, before) for before in range(4)]
