"""What a sweep makes of the records of its probe; its runs are tested with their command."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from loadtests.analysis.sweep import Step
from loadtests.errors import LoadError
from loadtests.plan import Plan
from loadtests.record import Outcome, Record
from loadtests.report.page import sweep_page
from loadtests.sweeping import Sweeper, sessions_per_second
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
    def step(sweeper: Sweeper, rate: float, number: int) -> Step:
        if number == 2:
            raise LoadError("no server answers at 127.0.0.1:1; check the address or start one", "server_unreachable")
        return Step(rate, "01", usual(), kept=True)

    monkeypatch.setattr(Sweeper, "_step", step)
    plan = Plan(promise=("p99 ttft <= 1s",))
    sweeper = Sweeper(plan, tmp_path, Team(), lambda plan, title: nullcontext(lambda progress: None), first=4.0)
    sweep = sweeper.sweep()
    assert ([step.rate for step in sweep.steps], sweep.highest) == ([4.0], 4.0)
    assert "no server answers" in sweep.failure
    assert "No further run could be made" in sweep_page(sweep)
