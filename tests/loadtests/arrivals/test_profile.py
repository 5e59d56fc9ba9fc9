"""Levels over time: what people type, its integral and inverse, and what is refused."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadtests.arrivals.profile import Profile
from tests.loadtests.arrivals.totals import level, total

LEVELS = st.one_of(st.just(0.0), st.floats(0.01, 1000.0).map(lambda level: round(level, 2)))
TIMES = st.floats(0.1, 1000.0).map(lambda time: round(time, 2))


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Some stages, constant and ramps, with or without an open end."""
    stages = []
    for first, last, time in draw(st.lists(st.tuples(LEVELS, st.none() | LEVELS, TIMES), max_size=5)):
        stages.append(f"{first:f}/{time:f}s" if last is None else f"{first:f}..{last:f}/{time:f}s")
    if not stages or draw(st.booleans()):
        stages.append(f"{draw(LEVELS):f}")
    return ",".join(stages)


def when(profile: Profile, *totals: float) -> list[float]:
    found: list[float] = profile.times(np.array(totals)).tolist()
    return found


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("8", {0: 8, 1e6: 8}),
        ("5/30s,10/30s,20/30s", {0: 5, 29.9: 5, 30: 10, 60: 20, 1000: 20}),
        ("1..20/60s", {0: 1, 30: 10.5, 60: 20, 61: 20}),
        ("5/30s,50/2s,5", {29: 5, 30: 50, 31.9: 50, 32: 5}),
        ("5/500ms, 6/1m, 7/1h, 8", {0.4: 5, 0.5: 6, 60.5: 7, 3660.5: 8}),
        ("4..0/4s,.5", {2: 2, 3.9: 0.1, 4: 0.5}),
    ],
)
def test_a_text_says_the_level_over_time(text: str, levels: dict[float, float]) -> None:
    profile = Profile.parse(text)
    assert {t: level(profile, t) for t in levels} == pytest.approx(levels)


@settings(deadline=None)
@given(texts(), st.floats(0, 1e6))
def test_moments_are_those_at_which_the_integral_reaches_the_totals(text: str, reached: float) -> None:
    profile = Profile.parse(text)
    (moment,) = when(profile, reached)
    if math.isinf(moment):
        assert profile.stages[-1].first == 0
        assert total(profile, profile.stages[-1].start) <= reached * (1 + 1e-9)
    else:
        assert total(profile, moment) == pytest.approx(reached, rel=1e-6, abs=1e-6)


@settings(deadline=None)
@example("0..0.5/1s,0")
@given(texts())
def test_the_number_of_users_changes_where_it_says_and_nowhere_else(text: str) -> None:
    profile = Profile.parse(text)
    changes = profile.changes
    assert changes[0] == 0
    for before, after in zip(changes, [*changes[1:], changes[-1] + 100], strict=True):
        middle = (before + after) / 2
        assert profile.users(before) == profile.users(middle)
        assert abs(profile.users(middle) - level(profile, middle)) <= 0.5 + 1e-6
    assert all(a < b and profile.users(a) != profile.users(b) for a, b in pairwise(changes))


def test_a_ramp_adds_its_users_one_by_one() -> None:
    profile = Profile.parse("1..3/4s,1")
    assert [(t, profile.users(t)) for t in profile.changes] == [(0, 1), (1, 2), (3, 3), (4, 1)]


INVALID = ("", "eight", "-1", "5/30", "nan", "5/30s,", "5,6/30s", "1..20", "5/0s", "9999999")
"""Profiles that can't be used; `tests.loadtests.test_error_messages` has what is said of each."""
