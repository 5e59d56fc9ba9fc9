"""The moments of open loops: their rate, how regular they are, and that a seed decides them."""

import subprocess
import sys
from itertools import islice
from typing import Literal

import numpy as np
import pytest

from loadtests.arrivals import schedule
from loadtests.arrivals.profile import Profile
from loadtests.arrivals.schedule import due_times
from loadtests.plan import Arrivals
from tests.loadtests.arrivals.totals import total

Process = Literal["constant", "poisson", "gamma"]
ALL: list[tuple[Process, float]] = [
    ("constant", 1.0),
    ("poisson", 1.0),
    ("gamma", 0.25),
    ("gamma", 4.0),
]


def rate(profile: str, process: Process = "poisson", burstiness: float = 1.0) -> Arrivals:
    return Arrivals(kind="rate", profile=profile, process=process, burstiness=burstiness)


def test_constant_arrivals_follow_steps_and_pauses() -> None:
    found = list(due_times(rate("1/3s,0/7s,2/2s,0", "constant"), seed=0, end=100.0))
    assert found == pytest.approx([0, 1, 2, 10, 10.5, 11, 11.5])


def test_the_end_belongs_to_it_no_more() -> None:
    assert list(due_times(rate("1", "constant"), seed=0, end=3.0)) == [0, 1, 2]
    assert list(due_times(rate("0"), seed=0, end=3.0)) == []


@pytest.mark.parametrize(("process", "burstiness"), ALL)
def test_intervals_have_the_mean_and_the_variation_that_were_asked_for(process: Process, burstiness: float) -> None:
    moments = np.array(list(due_times(rate("100", process, burstiness), seed=3, end=1000.0)))
    intervals = np.diff(moments)
    assert intervals.mean() == pytest.approx(0.01, rel=0.02)
    variation = intervals.std() / intervals.mean()
    assert variation == pytest.approx(0.0 if process == "constant" else burstiness**-0.5, rel=0.03, abs=1e-9)


@pytest.mark.parametrize(("process", "burstiness"), ALL)
def test_each_part_of_a_profile_has_its_share(process: Process, burstiness: float) -> None:
    """Over many seeds the mean number in each second is the profile's integral over it, the first one included."""
    arrivals = rate("5/2s,0/1s,5..45/4s,45..5/4s,5", process, burstiness)
    counts = np.array([np.histogram(list(due_times(arrivals, seed, 12.0)), 12, (0, 12))[0] for seed in range(600)])
    totals = [total(Profile.parse(arrivals.profile), float(t)) for t in range(13)]
    error = 5 * np.maximum(counts.std(axis=0) / 600**0.5, 0.01)
    close = np.abs(counts.mean(axis=0) - np.diff(totals)) <= error
    if process == "constant":  # of which every run is the same, whole numbers and no mean
        close = np.abs(counts[0] - np.diff(totals)) <= 1
    assert close.all(), (counts.mean(axis=0), np.diff(totals))


def test_ascending_and_without_end_where_none_is_given() -> None:
    found = list(islice(due_times(rate("10", "gamma", 0.3), seed=1, end=float("inf")), 20_000))
    assert len(found) == 20_000
    assert found == sorted(found)


@pytest.mark.parametrize("at_once", [4096, 1])
def test_no_rounding_puts_a_session_before_the_one_ahead_of_it(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ramp's moments are roots, and a bursty process has many that are nearly one; within a block and across them."""
    monkeypatch.setattr(schedule, "_BATCH_SIZE", at_once)
    arrivals = rate("0..40/20s", "gamma", 0.05)
    for seed in range(60):
        found = list(due_times(arrivals, seed, 20.0))
        assert found == sorted(found)


def test_a_seed_decides_them_in_any_process() -> None:
    program = (
        "from loadtests.arrivals.schedule import due_times; from loadtests.plan import Arrivals; "
        "print(list(due_times(Arrivals(kind='rate', profile='9', process='gamma', burstiness=.5), 7, 20.0)))"
    )
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    here = list(due_times(rate("9", "gamma", 0.5), 7, 20.0))
    assert there.stdout.strip() == repr(here)
    assert here != list(due_times(rate("9", "gamma", 0.5), 8, 20.0))


def test_a_longer_run_begins_with_the_shorter_one() -> None:
    short, long = (list(due_times(rate("100"), seed=0, end=end)) for end in (10.0, 100.0))
    assert long[: len(short)] == short
