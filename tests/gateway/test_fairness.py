"""By how much the flood of a tenant moves another's time to the first token: admission before an engine.

The clock is virtual, so the figures are those of the queues alone, on any machine.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import statistics
from collections import deque
from typing import Any

from inflight.gateway.admission_queue import Admission

SLOTS, STEP = 8, 0.02


class VirtualSelector(selectors.DefaultSelector):
    """Waiting takes no time: the clock goes to the next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everything waits"
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = VirtualSelector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


class Engine:
    """Runs SLOTS answers at a time, a token a step, and the others in order of arrival."""

    def __init__(self) -> None:
        self._queue: deque[tuple[list[int], asyncio.Event, asyncio.Event]] = deque()

    async def run(self) -> None:
        running: list[tuple[list[int], asyncio.Event, asyncio.Event]] = []
        while True:
            while self._queue and len(running) < SLOTS:
                running.append(self._queue.popleft())
            await asyncio.sleep(STEP)
            for left, first, last in running:
                first.set()
                left[0] -= 1
                if not left[0]:
                    last.set()
            running = [each for each in running if each[0][0]]

    def add(self, tokens: int) -> tuple[asyncio.Event, asyncio.Event]:
        """Return the events of the first token and of the last one."""
        events = asyncio.Event(), asyncio.Event()
        self._queue.append(([tokens], *events))
        return events


def first_tokens(flood: int, seed: int) -> list[float]:
    """The times to the first token of a tenant with three loops, beside one with so many."""
    firsts: list[float] = []
    chance = random.Random(seed)

    async def run() -> None:
        now = asyncio.get_running_loop().time
        gate, engine = Admission(lambda: 2 * SLOTS, 1000, running=lambda: SLOTS, clock=now), Engine()

        async def loop(tenant: str, pause: float) -> None:
            while True:
                await asyncio.sleep(chance.uniform(0, pause))
                began, tokens = now(), chance.randrange(10, 60)
                await gate.enter(1, tenant, tokens=64)
                first, last = engine.add(tokens)
                await first.wait()
                if tenant == "few" and began > 5:
                    firsts.append(now() - began)
                await last.wait()
                gate.leave(1, now() - began, tenant, 64 - tokens, tokens=64)

        tasks = [asyncio.create_task(engine.run()), *(asyncio.create_task(loop("few", 0.5)) for _ in range(3))]
        await asyncio.sleep(2)
        tasks += [asyncio.create_task(loop("many", 0.001)) for _ in range(flood)]
        await asyncio.sleep(100)
        assert gate.in_flight <= SLOTS
        for task in tasks:
            task.cancel()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())
    return firsts


def test_a_flood_of_32_loops_moves_anothers_p99_by_at_most_a_tenth() -> None:
    alone, beside = (statistics.quantiles(first_tokens(flood, 1), n=100)[98] for flood in (0, 32))
    assert beside <= 1.1 * alone
