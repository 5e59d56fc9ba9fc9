"""How fast a job goes, and when it says that it knows."""

from __future__ import annotations

import pytest

from inflight.batch.job.counts import Counts
from inflight.batch.reporting.throughput import RateEstimator


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def done(rows: int) -> Counts:
    return Counts(ok=rows, input_tokens=rows * 10, output_tokens=rows * 100)


def test_after_a_resume_the_rows_of_earlier_lives_count_in_no_rate() -> None:
    clock = FakeClock()
    pace = RateEstimator(done(900_000), total=1_000_000, clock=clock)
    clock.now += 10
    speed = pace.update(done(900_050))
    assert (speed.last_minute.rows, speed.last_minute.output_tokens) == (5.0, 500.0)
    assert speed.this_run == speed.last_minute
    assert speed.eta == pytest.approx((1_000_000 - 900_050) / 5)


def test_present_is_the_last_minute_and_life_is_all_of_this_life() -> None:
    clock = FakeClock()
    pace = RateEstimator(done(0), total=100_000, clock=clock)
    for second in range(1, 121):
        clock.now += 1
        speed = pace.update(done(second * 100 if second <= 60 else 6000 + (second - 60) * 10))
    assert speed.last_minute.rows == pytest.approx(10)
    assert speed.last_minute.input_tokens == pytest.approx(100)
    assert speed.this_run.rows == pytest.approx(6600 / 120)


def test_a_job_that_waits_for_its_server_comes_to_rest_and_then_knows_no_eta() -> None:
    clock = FakeClock()
    pace = RateEstimator(done(0), total=1000, clock=clock)
    clock.now += 10
    assert pace.update(done(100)).eta == pytest.approx(90)
    for _ in range(800):
        clock.now += 1
        speed = pace.update(done(100))
    assert speed.last_minute.rows == 0
    assert speed.eta is None


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_the_first_moments_say_nothing_of_the_end(seconds: float) -> None:
    clock = FakeClock()
    pace = RateEstimator(done(0), total=1000, clock=clock)
    clock.now += seconds
    assert pace.update(done(1)).eta is None


def test_without_a_number_of_rows_the_eta_goes_by_the_share_of_the_input() -> None:
    clock = FakeClock()
    pace = RateEstimator(done(500), input_fraction=0.2, clock=clock)
    clock.now += 100
    assert pace.update(done(600), 0.4).eta == pytest.approx(300)
    resumed = RateEstimator(done(500), clock=clock)
    for share in (None, 0.2, 0.4):
        clock.now += 100
        eta = resumed.update(done(600), share).eta
    assert eta == pytest.approx(300), "the share was not known at first"
    assert RateEstimator(done(0), clock=clock).update(done(5)).eta is None, "nobody knows how much there is"


def test_rows_that_are_asked_once_more_are_not_done_until_they_are_again() -> None:
    clock = FakeClock()
    pace = RateEstimator(done(1000), total=1000, clock=clock, retries_left=100)
    clock.now += 10
    speed = pace.update(done(1000), retries_left=80)
    assert speed.last_minute.rows == pytest.approx(2)
    assert speed.eta == pytest.approx(40)


def test_what_is_done_takes_no_time() -> None:
    assert RateEstimator(done(1000), total=1000).update(done(1000)).eta == 0


def test_a_long_job_keeps_few_looks() -> None:
    clock = FakeClock()
    pace = RateEstimator(done(0), total=10**9, clock=clock)
    for second in range(1, 5000):
        clock.now += 1
        pace.update(done(second))
    assert len(pace._samples) <= 602
