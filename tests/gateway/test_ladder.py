"""When a route enters and leaves the rungs of its ladder."""

from __future__ import annotations

import math
import random
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from inflight.gateway.ladder import Capacity, Ladder, LadderSpec

RUNGS = [{"max_tokens": 64}, {"model": "small"}, {"refuse": True}]


def ladder(**values: Any) -> tuple[Ladder, list[int]]:
    levels: list[int] = []
    return Ladder(LadderSpec.model_validate({"rungs": RUNGS, **values}), "chat", levels.append), levels


def feed(route: Ladder, wait: float, begin: float, end: float, every: float = 0.25) -> None:
    for tick in range(round((end - begin) / every)):
        route.observe(wait, begin + tick * every, 1, endless)


def endless(level: int) -> Capacity:
    return math.inf, 1


def test_it_enters_rung_by_rung_and_leaves_them_again() -> None:
    route, levels = ladder(enter_wait=2, enter_seconds=3, leave_seconds=10)
    feed(route, 5, 0, 3)
    assert levels == []  # not long enough
    feed(route, 5, 3, 62)
    assert [rung.name for rung in route.rungs] == ["max_tokens=64", "model=small"]
    feed(route, 1.5, 62, 300)  # between the bounds
    assert levels == [1, 2]
    feed(route, 0.5, 300, 400)
    assert levels == [1, 2, 1, 0]
    assert route.rungs == ()


def test_a_wait_that_falls_in_between_counts_from_the_start_again() -> None:
    route, levels = ladder()
    for begin in range(0, 100, 3):
        feed(route, 9, begin, begin + 2.75)
        feed(route, 1.5, begin + 2.75, begin + 3)
    assert levels == []


def test_it_stays_while_more_requests_come_than_were_answered_before() -> None:
    route, levels = ladder(enter_seconds=1, leave_seconds=10)

    def come(wait: float, begin: float, end: float, every: float) -> None:
        for tick in range(round((end - begin) / every)):
            route.observe(wait, begin + tick * every, 1, lambda level: (5.0, 10))

    come(9, 0, 10, 0.1)
    come(0, 10, 200, 0.1)  # ten in a second, and it answered five
    assert levels == [1]
    come(0, 200, 300, 0.25)
    assert levels == [1, 0]


@pytest.mark.parametrize(("places", "left"), [(1, False), (4, True)])
def test_it_leaves_by_the_places_that_there_are_then(places: int, left: bool) -> None:
    """One of four servers was there when the rung was entered; each answers two requests in a second."""
    route, levels = ladder(enter_seconds=1, leave_seconds=10)
    for tick in range(1000):
        now = tick / 5
        there = 1 if now < 20 else places
        capacity = (2.0 * there, there)
        route.observe(9 if now < 20 else 0, now, 1, partial(lambda found, level: found, capacity))
    assert (levels[-1] == 0) == left


def test_silence_leaves_the_rungs() -> None:
    route, levels = ladder()
    feed(route, 9, 0, 100)
    assert levels == [1, 2, 3]
    route.observe(9, 1e6, 1, endless)
    assert (route.level, levels) == (0, [1, 2, 3, 2, 1, 0])


@pytest.mark.parametrize("seed", range(10))
def test_however_the_wait_changes_a_switch_is_one_rung_and_at_least_the_dwell_after_the_last(seed: int) -> None:
    chance, now, switches = random.Random(seed), 0.0, [-1e9]
    route = Ladder(LadderSpec.model_validate({"rungs": RUNGS}), "chat", lambda level: switches.append(now))
    level = 0
    for _ in range(2000):
        now += chance.choice([0.01, 0.3, 1])
        before = len(switches)
        route.observe(
            chance.choice([0, 0, 1.5, 3, 30]) if chance.random() < 0.2 else 30 * (now % 200 < 90), now, 1, endless
        )
        assert abs(route.level - level) == len(switches) - before <= 1
        level = route.level
    assert len(switches) > 5
    assert min(later - earlier for earlier, later in pairwise(switches)) >= 30


@pytest.mark.parametrize(
    "values",
    [
        {"rungs": []},
        {"rungs": [*RUNGS, {"refuse": True}]},
        {"rungs": [{}]},
        {"rungs": [{"max_tokens": None}]},
        {"rungs": [{"max_tokens": 5, "model": "small"}]},
        {"rungs": [{"max_tokens": 0}]},
        {"rungs": [{"refuse": False}]},
        {"rungs": [{"refuse": True}, {"max_tokens": 5}]},
        {"rungs": [{"max_tokens": 5}, {"max_tokens": 5}]},
        {"rungs": [{"model": "a"}, {"model": "b"}]},
        {"rungs": [{"cache": True}]},
        {"leave_wait": 2},
        {"enter_wait": 0},
        {"dwell_seconds": 29},
        {"enter_seconds": float("nan")},
    ],
    ids=str,
)
def test_a_ladder_that_could_not_hold_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ladder(**values)
