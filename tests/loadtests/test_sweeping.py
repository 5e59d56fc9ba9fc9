"""What a sweep makes of the records of its probe; its runs are tested with their command."""

from __future__ import annotations

import pytest

from loadtests.record import Outcome, Record
from loadtests.sweeping import sessions_per_second


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
