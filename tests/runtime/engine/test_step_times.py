"""The shortest of the latest steps, as long as they are recent."""

from __future__ import annotations

from inflight.runtime.engine.scheduler import RECENT_NS, StepTimes


def test_the_shortest_recent_step_counts() -> None:
    times = StepTimes()
    assert times.shortest(now_ns=100) == 0
    times.add(0, 50)
    times.add(50, 70)
    times.add(70, 110)
    assert times.shortest(now_ns=110) == 20


def test_steps_are_forgotten_after_a_rest() -> None:
    times = StepTimes()
    times.add(0, 50)
    assert times.shortest(50 + RECENT_NS - 1) == 50
    assert times.shortest(50 + RECENT_NS) == 0


def test_only_the_latest_count() -> None:
    times = StepTimes()
    times.add(0, 1)
    for start in range(1, 1000, 10):
        times.add(start, start + 10)
    assert times.shortest(1001) == 10
