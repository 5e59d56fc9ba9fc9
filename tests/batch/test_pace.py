"""A job with a deadline is slow while that is enough, and fast when it nears."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from inflight.batch.job.deadline import absolute_time, seconds_until
from inflight.batch.pace import Pace


def simulate(
    rows: float, seconds: float, full_rate: float, slower_from: float = 1e9
) -> tuple[float, float, float, set[int]]:
    """When all rows were done, the least share, the rows done at full priority, and the priorities."""
    pace, now, least, urgent = Pace(), 0.0, 1.0, 0.0
    priorities = set()
    while rows > 0 and now < 10 * seconds:
        capacity = full_rate * (0.3 if now > slower_from and pace.priority < 0 else 1.0)
        rate = capacity * pace.share
        rows -= rate
        urgent += rate if pace.priority == 0 else 0.0
        now += 1.0
        pace.update(now, seconds - now, rows / rate if now > 10 else None)
        least = min(least, pace.share)
        priorities.add(pace.priority)
    return now, least, urgent, priorities


def test_a_job_with_much_time_takes_a_small_share_and_meets_its_deadline() -> None:
    ended, least, _, priorities = simulate(rows=3600, seconds=3600, full_rate=10)
    assert 1000 < ended <= 3600
    assert least < 0.3
    assert priorities == {-1}


def test_others_are_overtaken_only_as_the_deadline_nears() -> None:
    """From the middle on, others leave a job of low priority too little."""
    ended, _, urgent, priorities = simulate(rows=3000, seconds=3600, full_rate=2, slower_from=1000)
    assert ended <= 3600
    assert priorities == {-1, 0}
    assert 0 < urgent < 3000


def test_a_deadline_that_can_t_be_met_makes_it_as_fast_as_possible_and_is_said() -> None:
    ended, _, urgent, _ = simulate(rows=3600, seconds=600, full_rate=1)
    assert ended >= 3600
    assert urgent > 3400
    pace = Pace()
    pace.update(100.0, 60.0, 600.0)
    assert "9 min after" in pace.expected


def test_a_deadline_that_is_over_needs_no_estimate() -> None:
    pace = Pace()
    assert not pace.update(1.0, 60.0, None)
    assert pace.update(100.0, -1.0, None)
    assert (pace.priority, pace.share, pace.expected) == (0, 1.0, "past its deadline")


@pytest.mark.parametrize(("text", "seconds"), [("6h", 21600), ("1d 12h", 129600), ("90 min", 5400), ("1h30m", 5400)])
def test_durations(text: str, seconds: float) -> None:
    now = datetime.now(UTC).timestamp()
    assert seconds_until(absolute_time(text), now) == pytest.approx(seconds, abs=2)


@pytest.mark.parametrize("text", ["", "tomorrow", "5", "6 weeks", "2026-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        absolute_time(text)


def test_a_time_is_kept_when_a_job_is_resumed() -> None:
    assert absolute_time(absolute_time("2026-11-30T06:00+01:00")) == "2026-11-30T05:00:00+00:00"
