"""How many are in flight, against servers whose places and speed are known."""

from __future__ import annotations

import pytest

from inflight.batch.dispatch.backend import ServerLoad
from inflight.batch.dispatch.concurrency_limit import INITIAL_LIMIT, AdaptiveLimit


def settle(
    throttle: AdaptiveLimit, places: int, others: int = 0, max_running: int | None = None, looks: int = 60
) -> list[int]:
    """A server with so many places, some taken by others whose requests go first; how many waited at each look."""
    waiting = []
    for second in range(looks):
        requests = throttle.limit + others
        running = min(requests, places)
        waiting.append(requests - running)
        throttle.observe(ServerLoad(running, requests - running, max_running), throttle.limit, float(second))
    return waiting


@pytest.mark.parametrize("places", [1, 8, 64, 1024])
def test_free_places_are_filled_at_the_first_look_with_a_short_queue_behind(places: int) -> None:
    throttle = AdaptiveLimit()
    throttle.observe(ServerLoad(0, 0, places), 0, 0.0)
    assert places < throttle.limit <= places + max(2, places // 8)
    assert set(settle(throttle, places, max_running=places)[5:]) <= set(range(1, max(5, places // 4)))


@pytest.mark.parametrize("places", [1, 8, 64, 500])
def test_places_that_are_not_told_are_found_by_the_queue(places: int) -> None:
    waiting = settle(throttle := AdaptiveLimit(), places)
    assert all(0 < count <= max(4, places // 4) for count in waiting[40:])
    assert throttle.limit > places


def test_a_server_that_others_fill_gets_next_to_nothing_and_gets_more_when_they_are_gone() -> None:
    throttle = AdaptiveLimit()
    settle(throttle, 64, others=200, max_running=64)
    assert throttle.limit == 1
    settle(throttle, 64, max_running=64)
    assert throttle.limit > 64


def test_one_look_at_an_empty_queue_is_chance() -> None:
    throttle = AdaptiveLimit()
    throttle.observe(ServerLoad(0, 0, 8), 0, 0.0)
    throttle.observe(ServerLoad(8, 2, 8), 10, 1.0)
    throttle.observe(ServerLoad(0, 0, 8), 10, 2.0)
    throttle.observe(ServerLoad(8, 2, 8), 10, 3.0)
    assert throttle.limit == 10


def test_it_never_goes_over_the_most() -> None:
    throttle = AdaptiveLimit(max_limit=5)
    settle(throttle, 64, max_running=64)
    assert throttle.limit == 5


def test_an_overloaded_server_rests_gets_half_and_only_little_by_little_more() -> None:
    throttle = AdaptiveLimit()
    throttle.observe(ServerLoad(0, 0, 64), 0, 0.0)
    full = throttle.limit
    for _ in range(20):  # all those that were in flight are refused at once
        throttle.server_overloaded(full, 10.0)
    assert throttle.paused(10.1)
    assert not throttle.paused(10.3)
    assert throttle.limit == full // 2
    seen = []
    for second in range(3):
        throttle.observe(ServerLoad(throttle.limit, 0, 64), throttle.limit, 11.0 + second)
        seen.append(throttle.limit)
    assert seen[0] <= full * 0.9 + 4
    assert seen[-1] <= full * 0.9 + 12  # the ceiling rises by a twentieth a second
    assert seen == sorted(seen)


def test_pauses_grow_while_a_server_answers_nothing() -> None:
    throttle = AdaptiveLimit()
    now, pauses = 0.0, []
    for _ in range(8):
        throttle.server_overloaded(1, now)
        began = now
        while throttle.paused(now):
            now += 0.05
        pauses.append(now - began)
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.5
    assert 7.5 < pauses[-1] < 8.5
    throttle.request_answered(10, now)
    throttle.server_overloaded(1, now)
    assert not throttle.paused(now + 0.5)


def blind(throttle: AdaptiveLimit, places: int, answers: int = 20_000) -> list[int]:
    """A server that tells nothing, whose answers come at a rate that grows with what is in flight up to its places."""
    now, limits = 0.0, []
    for _ in range(answers):
        now += 1.0 / min(throttle.limit, places)
        throttle.request_answered(10, now)
        limits.append(throttle.limit)
    return limits


@pytest.mark.parametrize("places", [4, 64, 300])
def test_without_metrics_it_climbs_to_what_brings_most(places: int) -> None:
    limits = blind(AdaptiveLimit(), places)
    assert limits[0] == INITIAL_LIMIT
    late = limits[-5000:]
    assert min(late) >= places * 0.9 or min(late) >= INITIAL_LIMIT
    assert max(late) <= max(INITIAL_LIMIT, places) * 2


def test_without_metrics_it_comes_back_from_overload() -> None:
    throttle = AdaptiveLimit()
    blind(throttle, 64)
    throttle.server_overloaded(throttle.limit, 1e6)
    assert throttle.limit < 64
    now = 1e6 + 1
    for _ in range(20_000):
        now += 1.0 / min(throttle.limit, 64)
        throttle.request_answered(10, now)
    assert throttle.limit >= 50
