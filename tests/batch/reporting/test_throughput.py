"""How fast a job goes, and when it says that it knows."""

from __future__ import annotations

import pytest

from inflight.batch.job.counts import Counts
from inflight.batch.reporting.throughput import RateEstimator, Throughput


class Pace(RateEstimator):
    """With a clock that moves as a test says."""

    def __init__(self, counts: Counts, total: int | None = None, input_fraction: float | None = None, **more: int):
        self.now = 1000.0
        super().__init__(counts, total, input_fraction, lambda: self.now, **more)

    def after(self, seconds: float, counts: Counts, input_fraction: float | None = None, **more: int) -> Throughput:
        self.now += seconds
        return self.update(counts, input_fraction, **more)


def done(rows: int) -> Counts:
    return Counts(ok=rows, input_tokens=rows * 10, output_tokens=rows * 100)


def test_after_a_resume_the_rows_of_earlier_lives_count_in_no_rate() -> None:
    pace = Pace(done(900_000), total=1_000_000)
    speed = pace.after(10, done(900_050))
    assert (speed.last_minute.rows, speed.last_minute.output_tokens) == (5.0, 500.0)
    assert speed.this_run == speed.last_minute
    assert speed.eta == pytest.approx((1_000_000 - 900_050) / 5)


def test_present_is_the_last_minute_and_life_is_all_of_this_life() -> None:
    pace = Pace(done(0), total=100_000)
    for second in range(1, 121):
        speed = pace.after(1, done(second * 100 if second <= 60 else 6000 + (second - 60) * 10))
    assert speed.last_minute.rows == pytest.approx(10)
    assert speed.last_minute.input_tokens == pytest.approx(100)
    assert speed.this_run.rows == pytest.approx(6600 / 120)


def test_a_job_that_waits_for_its_server_comes_to_rest_and_then_knows_no_eta() -> None:
    pace = Pace(done(0), total=1000)
    assert pace.after(10, done(100)).eta == pytest.approx(90)
    for _ in range(800):
        speed = pace.after(1, done(100))
    assert speed.last_minute.rows == 0
    assert speed.eta is None


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_the_first_moments_say_nothing_of_the_end(seconds: float) -> None:
    pace = Pace(done(0), total=1000)
    assert pace.after(seconds, done(1)).eta is None


def test_without_a_number_of_rows_the_eta_goes_by_the_share_of_the_input() -> None:
    pace = Pace(done(500), input_fraction=0.2)
    assert pace.after(100, done(600), 0.4).eta == pytest.approx(300)
    resumed = Pace(done(500))
    for share in (None, 0.2, 0.4):
        eta = resumed.after(100, done(600), share).eta
    assert eta == pytest.approx(300), "the share was not known at first"
    assert Pace(done(0)).update(done(5)).eta is None, "nobody knows how much there is"


def test_rows_that_are_asked_once_more_are_not_done_until_they_are_again() -> None:
    pace = Pace(done(1000), total=1000, retries_left=100)
    speed = pace.after(10, done(1000), retries_left=80)
    assert speed.last_minute.rows == pytest.approx(2)
    assert speed.eta == pytest.approx(40)


def test_what_is_done_takes_no_time() -> None:
    assert Pace(done(1000), total=1000).update(done(1000)).eta == 0


def test_a_long_job_keeps_few_looks() -> None:
    pace = Pace(done(0), total=10**9)
    for second in range(1, 5000):
        pace.after(1, done(second))
    assert len(pace._samples) <= 602
