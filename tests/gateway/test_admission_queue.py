"""Who gets in, in which order, and when the refused come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps

import pytest

from inflight.gateway.admission_queue import Admission
from inflight.openai_api.errors import ApiError


def admission(limit: int = 1, max_waiting: int = 10) -> Admission:
    return Admission(lambda: limit, max_waiting)


def in_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 20))

    return run


async def begin(gate: Admission, tenant: str = "a", places: int = 1, seconds: float = 60) -> asyncio.Task[None]:
    task = asyncio.create_task(gate.enter(places, tenant, seconds))
    await asyncio.sleep(0)
    return task


@in_loop
async def test_a_request_without_a_place_waits_until_one_is_free() -> None:
    gate = admission()
    await gate.enter(1)
    second = await begin(gate)
    assert (gate.in_flight, gate.waiting, second.done()) == (1, 1, False)
    gate.leave(1, 0.1)
    await second
    assert (gate.in_flight, gate.waiting) == (1, 0)


@in_loop
async def test_tenants_take_turns() -> None:
    gate, order = admission(), []
    await gate.enter(1)

    async def turn(tenant: str) -> None:
        await gate.enter(1, tenant)
        order.append(tenant)
        gate.leave(1, 0.1)

    tasks = [asyncio.create_task(turn(tenant)) for tenant in "aaaabbc"]
    await asyncio.sleep(0)
    gate.leave(1, 0.1)
    await asyncio.gather(*tasks)
    assert "".join(order) == "abcabaa"


@in_loop
async def test_a_request_of_more_places_is_not_overtaken() -> None:
    gate = admission(limit=4)
    await gate.enter(3)
    large = await begin(gate, places=4)
    small = await begin(gate, places=1)
    assert not small.done()
    gate.leave(3, 0.1)
    await large
    assert not small.done()
    gate.leave(4, 0.1)
    await small


@in_loop
async def test_a_request_larger_than_the_limit_runs_alone() -> None:
    gate = admission(limit=2)
    await gate.enter(5)
    assert gate.in_flight == 5


@in_loop
async def test_beyond_the_room_a_request_is_refused_with_a_time_of_at_most_a_minute() -> None:
    gate = admission(max_waiting=3)
    await gate.enter(1)
    gate.leave(1, 3600.0)
    await gate.enter(1)
    for _ in range(3):
        await begin(gate)
    for _ in range(1000):  # those that never come back change nothing
        with pytest.raises(ApiError) as refused:
            await gate.enter(128, "a")
        assert (refused.value.status, refused.value.code) == (429, "overloaded")
        assert 1 <= int(refused.value.headers["retry-after"]) <= 60
    assert gate.waiting == 3


@in_loop
async def test_a_tenant_with_fewer_requests_takes_the_turn_of_one_with_more() -> None:
    gate = admission(max_waiting=4)
    await gate.enter(1)
    many = [await begin(gate, "many") for _ in range(4)]
    few = await begin(gate, "few")
    with pytest.raises(ApiError):
        await many[-1]
    another = await begin(gate, "few")
    with pytest.raises(ApiError):
        await many[-2]
    with pytest.raises(ApiError):
        await gate.enter(1, "few")  # as many as the other has
    assert gate.waiting == 4
    assert not any(task.done() for task in (few, another, *many[:2]))


@in_loop
async def test_a_request_that_waits_beyond_its_deadline_is_refused_and_forgotten() -> None:
    gate = admission()
    await gate.enter(1)
    late, next_one = await begin(gate, seconds=0.01), await begin(gate, "b")
    with pytest.raises(ApiError):
        await late
    assert gate.waiting == 1
    gate.leave(1, None)
    await next_one


@in_loop
async def test_a_client_that_leaves_while_it_waits_gives_up_its_turn() -> None:
    gate = admission(limit=2)
    await gate.enter(1)
    large, small = await begin(gate, places=2), await begin(gate)
    large.cancel()
    with pytest.raises(asyncio.CancelledError):
        await large
    await small
    assert (gate.in_flight, gate.waiting) == (2, 0)


@in_loop
async def test_places_that_were_given_to_a_client_that_just_left_are_given_back() -> None:
    gate = admission()
    await gate.enter(1)
    left, next_one = await begin(gate), await begin(gate)
    gate.leave(1, None)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    await next_one
    assert (gate.in_flight, gate.waiting) == (1, 0)
