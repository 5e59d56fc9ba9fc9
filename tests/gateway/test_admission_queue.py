"""Who gets in, in which order, and when the refused come back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

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


async def begin(
    gate: Admission, tenant: str = "", places: int = 1, seconds: float = 60, **options: Any
) -> asyncio.Task[None]:
    task = asyncio.create_task(gate.enter(places, tenant, seconds, **options))
    await asyncio.sleep(0)
    return task


async def admitted(*tasks: asyncio.Task[None]) -> int:
    """How many were let in, those that have left since included."""
    for _ in range(4):
        await asyncio.sleep(0)
    return sum(task.done() and task.exception() is None for task in tasks)


@dataclass(frozen=True)
class Visit:
    tenant: str
    priority: int = 0
    weight: int = 1
    tokens: float = 1.0
    unused: float = 0.0
    name: str = ""


async def order_of(visits: list[Visit], gate: Admission | None = None) -> str:
    """The order in which requests that all wait get the only place."""
    gate, order = gate or admission(max_waiting=1000), []
    await gate.enter(1, "before")

    async def make(visit: Visit) -> None:
        await gate.enter(1, visit.tenant, tokens=visit.tokens, weight=visit.weight, priority=visit.priority)
        order.append(visit.name or visit.tenant)
        gate.leave(1, 0.1, visit.tenant, visit.unused)

    tasks = [asyncio.create_task(make(visit)) for visit in visits]
    await asyncio.sleep(0)
    gate.leave(1, 0.1, "before")
    await asyncio.gather(*tasks)
    return "".join(order)


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
    assert await order_of([Visit(tenant) for tenant in "aaaabbc"]) == "abcabaa"


@in_loop
async def test_turns_are_as_many_as_the_weight_and_as_few_as_the_tokens() -> None:
    flood = [Visit(tenant) for tenant in "abc" for _ in range(60)]
    order = await order_of([replace(each, weight=3) if each.tenant == "a" else each for each in flood])
    assert [order[:50].count(tenant) for tenant in "abc"] == [30, 10, 10]
    order = await order_of([replace(each, tokens=3) if each.tenant == "a" else each for each in flood])
    assert [order[:70].count(tenant) for tenant in "abc"] == [10, 30, 30]
    used = [replace(each, tokens=3, unused=2) if each.tenant == "a" else each for each in flood]
    order = await order_of(used)
    assert {order[:60].count(tenant) for tenant in "abc"} == {20}


@in_loop
async def test_a_priority_goes_first_among_the_requests_of_its_tenant_alone() -> None:
    visits = [Visit("a", name="1"), Visit("a", name="2"), Visit("b", name="3"), Visit("a", 9, name="4")]
    assert await order_of([*visits, Visit("a", -1, name="5"), Visit("a", name="6")]) == "431265"


@in_loop
async def test_a_tenant_that_was_idle_has_saved_nothing_up() -> None:
    gate = admission()
    for _ in range(100):
        await gate.enter(1, "a")
        gate.leave(1, 0.1, "a")
    assert await order_of([Visit(tenant) for tenant in "aaabbb"], gate) == "bababa"


@in_loop
async def test_newcomers_do_not_wait_for_what_others_estimate_too_high() -> None:
    gate = Admission(lambda: 4, 1000, running=lambda: 1)
    turns: list[str] = []

    async def ask(tenant: str, tokens: int, used: int) -> None:
        while len(turns) < 100:
            await gate.enter(1, tenant, tokens=tokens)
            turns.append(tenant)
            await asyncio.sleep(0)
            gate.leave(1, 0.1, tenant, tokens - used, tokens=tokens)

    floods = [asyncio.create_task(ask("flood", 4096, 20)) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.gather(*floods, *(ask(tenant, 100, 100) for tenant in ("one", "two")))
    assert min(turns.count("one"), turns.count("two")) >= 10


@in_loop
async def test_among_more_tenants_than_places_one_is_kept() -> None:
    gate = admission(limit=2, max_waiting=1000)
    for tenant in "abc":
        await gate.enter(1, tenant)
        gate.leave(1, 0.1, tenant)
    flood = [await begin(gate, "a") for _ in range(4)]
    assert await admitted(*flood) == 1
    await gate.enter(1, "b")


@in_loop
async def test_a_flood_leaves_others_the_places_that_they_wanted_within_the_minute() -> None:
    now = [0.0]
    gate = Admission(lambda: 16, 100, running=lambda: 8, clock=lambda: now[0])
    flood = [await begin(gate, "flood") for _ in range(40)]
    assert await admitted(*flood) == 16  # alone, it fills the servers' queue
    few = [await begin(gate, "few") for _ in range(2)]
    for _ in range(16):
        gate.leave(1, 1.0, "flood")
    assert (await admitted(*flood), await admitted(*few)) == (16 + 6, 2)
    for _ in range(2):
        gate.leave(1, 1.0, "few")
    assert await admitted(*flood) == 22
    for moment in (20.0, 40.0):
        now[0] = moment
        assert gate.predicted_wait("few", 2) == 0
        assert gate.predicted_wait("flood", 1) > 0
        await gate.enter(2, "few")
        gate.leave(2, 1.0, "few")
    for moment, total in ((80.0, 23), (110.0, 23 + 11)):  # it is kept for it no longer, and the flood is alone again
        now[0] = moment
        gate.leave(1, 1.0, "flood")
        assert await admitted(*flood) == total


@in_loop
async def test_a_tenant_gets_no_more_kept_than_its_share() -> None:
    gate = Admission(lambda: 8, 100)
    many = [await begin(gate, "many") for _ in range(30)]
    others = [await begin(gate, "others", weight=3) for _ in range(30)]
    for _ in range(8):
        gate.leave(1, 1.0, "many")
    assert (await admitted(*many) - 8, await admitted(*others)) == (2, 6)


@in_loop
async def test_the_predicted_wait_grows_with_what_is_before_in_the_own_queue_alone() -> None:
    gate = admission(limit=2)
    assert gate.predicted_wait("a", 1) == 0
    await gate.enter(2, "a")
    alone = gate.predicted_wait("a", 1)
    for _ in range(3):
        await begin(gate, "a")
    assert gate.predicted_wait("a", 1) == pytest.approx(4 * alone)
    assert gate.predicted_wait("b", 1) == pytest.approx(2 * alone)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_no_place_is_lost_and_nobody_waits_for_nothing(seed: int) -> None:
    @in_loop
    async def happen() -> None:
        chance, now = random.Random(seed), [0.0]
        gate = Admission(lambda: 8, 20, running=lambda: 4, clock=lambda: now[0])
        open_ones: list[tuple[asyncio.Task[None], str, int]] = []
        for _ in range(300):
            now[0] += chance.choice([0, 1, 40])
            tenant, places = chance.choice("abcd"), chance.choice([1, 1, 2, 9])
            deed = chance.random()
            if deed < 0.5:
                task = await begin(gate, tenant, places, weight=ord(tenant) - 96, priority=chance.randrange(2))
                open_ones.append((task, tenant, places))
            elif open_ones:
                task, tenant, places = open_ones.pop(chance.randrange(len(open_ones)))
                if not task.done() or task.exception() is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                else:
                    gate.leave(places, 1.0, tenant, unused_tokens=chance.random())
            held = [places for task, _, places in open_ones if await admitted(task)]
            assert gate.in_flight == sum(held)
            assert gate.waiting == sum(not task.done() for task, _, _ in open_ones)
            assert gate.in_flight or not gate.waiting

    happen()


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
            await gate.enter(128)
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
