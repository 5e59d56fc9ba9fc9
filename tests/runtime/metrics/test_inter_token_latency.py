"""The sample of times between tokens: whom it follows, what it takes, how much at most."""

from __future__ import annotations

import time

import pytest

from inflight.runtime.metrics import engine_metrics
from inflight.runtime.metrics.engine_metrics import InterTokenLatency

ANSWERS = [object() for _ in range(4)]


def step(gaps: InterTokenLatency, answers: list[object], tokens: int = 1) -> list[object | None]:
    """One event of each; whom the sample follows after each."""
    followed = []
    for answer in answers:
        gaps.observe(answer, tokens, ended=False)
        followed.append(gaps.tracked)
    return followed


def test_a_gap_is_the_time_from_one_event_to_the_next_for_each_token() -> None:
    gaps = InterTokenLatency(10)
    began = time.monotonic()
    step(gaps, ANSWERS[:1])
    time.sleep(0.2)
    step(gaps, ANSWERS[:1], tokens=4)
    whole = time.monotonic() - began
    (gap,) = gaps.drain()
    assert 0.2 <= 4 * gap <= whole + 1e-6


def test_answers_take_turns_and_a_step_gives_one_gap_at_most() -> None:
    gaps = InterTokenLatency(100)
    followed = []
    for _ in range(8):
        step(gaps, ANSWERS)
        followed.append(gaps.tracked)
    assert set(followed) >= set(ANSWERS)
    assert 4 <= len(gaps.drain()) <= 8


def test_a_full_sample_takes_nothing_until_it_is_taken_away() -> None:
    gaps = InterTokenLatency(2)
    for _ in range(20):
        step(gaps, ANSWERS)
    assert len(gaps.drain()) == 2
    for _ in range(20):
        step(gaps, ANSWERS)
    assert len(gaps.drain()) == 2


@pytest.mark.parametrize(("tokens", "expected"), [(1, 1), (0, 0)])
def test_an_answers_last_event_gives_a_gap_if_it_has_a_token(tokens: int, expected: int) -> None:
    gaps = InterTokenLatency(10)
    gaps.observe(ANSWERS[0], 1, ended=False)
    gaps.observe(ANSWERS[0], tokens, ended=True)
    assert len(gaps.drain()) == expected
    assert gaps.tracked is None


def test_an_answer_of_one_event_is_not_followed() -> None:
    gaps = InterTokenLatency(10)
    gaps.observe(ANSWERS[0], 1, ended=True)
    assert gaps.tracked is None
    assert gaps.drain() == []


def test_an_answer_that_never_speaks_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    gaps = InterTokenLatency(10)
    gaps.observe(ANSWERS[0], 1, ended=False)
    gaps.drain()
    assert gaps.tracked is ANSWERS[0]
    monkeypatch.setattr(engine_metrics, "STALE_NS", 0)
    gaps.drain()
    assert gaps.tracked is None
