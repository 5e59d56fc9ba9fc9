"""Who is admitted, in which order, and what becomes of those that come back as they were told."""

from __future__ import annotations

import asyncio
import random

import pytest

from inflight.gateway.admission import Admission
from inflight.openai_api.errors import ApiError
from tests.fixtures.errors import raises


class Places:
    """Admission by a clock that a test moves; requests have names."""

    def __init__(self, limit: int) -> None:
        self.now = 0.0
        self.admission = Admission(lambda: limit, clock=lambda: self.now)

    async def enter(self, name: str, places: int = 1) -> None:
        await self.admission.enter(places, name.encode)

    async def refused(self, name: str, places: int = 1) -> float:
        """Send a request that is refused; return when it is to come back."""
        with raises(ApiError, "overloaded") as error:
            await self.enter(name, places)
        return self.now + float(error.value.headers["retry-after-ms"]) / 1000

    async def waiting(self, name: str, places: int = 1) -> asyncio.Task[None]:
        """A request that waits for a place."""
        task = asyncio.create_task(self.enter(name, places))
        await asyncio.sleep(0)
        assert not task.done()
        return task


def test_those_that_come_back_as_told_go_before_new_requests_in_turn() -> None:
    async def check() -> None:
        places = Places(2)
        await places.enter("a", 2)
        places.now = max([await places.refused("b", 2), await places.refused("c")])
        first, second = await places.waiting("b", 2), await places.waiting("c")
        places.admission.leave(1, 1.0)
        await places.refused("new")
        assert not first.done()
        assert not second.done(), "it waits for its turn though there is a place for it"
        places.admission.leave(1, 1.0)
        await first
        assert not second.done()
        places.admission.leave(1, 1.0)
        await second
        assert places.admission.in_flight == 2

    asyncio.run(check())


def test_who_comes_early_or_too_late_is_a_new_request_and_blocks_nobody() -> None:
    async def check() -> None:
        places = Places(1)
        await places.enter("a")
        await places.refused("b")
        await places.refused("b")
        places.now += 100
        await places.refused("b")
        places.admission.leave(1, 1.0)
        await places.enter("new")

    asyncio.run(check())


@pytest.mark.parametrize("granted", [False, True])
def test_a_client_that_leaves_while_it_waits_takes_no_place(granted: bool) -> None:
    async def check() -> None:
        places = Places(1)
        await places.enter("a")
        places.now = max([await places.refused("b"), await places.refused("c")])
        first, second = await places.waiting("b"), await places.waiting("c")
        if granted:
            places.admission.leave(1, 1.0)
        first.cancel()
        await asyncio.wait([first])
        if not granted:
            places.admission.leave(1, 1.0)
        await second
        assert places.admission.in_flight == 1

    asyncio.run(check())


def test_clients_that_obey_are_admitted_when_they_come_back() -> None:
    """Four hundred at once for eight places, with answers of 1 to 5 ms; some never come back."""
    source = random.Random(5)
    admission = Admission(lambda: 8)
    peak, again = 0, []

    async def visit(name: str) -> None:
        nonlocal peak
        for attempt in range(2):
            try:
                await admission.enter(1, name.encode)
            except ApiError as error:
                if attempt == 0 and source.random() < 0.2:
                    return
                again.append(attempt)
                await asyncio.sleep(float(error.headers["retry-after-ms"]) / 1000)
                continue
            peak = max(peak, admission.in_flight)
            began = asyncio.get_running_loop().time()
            await asyncio.sleep(source.uniform(0.001, 0.005))
            admission.leave(1, asyncio.get_running_loop().time() - began)
            return

    async def check() -> None:
        for _ in range(100):  # until it knows how long answers take
            await admission.enter(1, lambda: b"one at a time")
            admission.leave(1, 0.003)
        await asyncio.gather(*(visit(str(number)) for number in range(400)))

    asyncio.run(check())
    assert peak == 8
    assert again.count(1) < again.count(0) / 10
    assert admission.in_flight == 0
