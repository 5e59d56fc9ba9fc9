"""Load on a running server, by concurrency or by rate, and the outcomes of its requests."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from inflight_client import AsyncClient, InflightError, Sampling

from benchmarks.prompts import Prompts

REQUEST_TIMEOUT = 300.0
"""Seconds after which a request without an end counts as hanging."""
_OVERLOADED = "overloaded"
_MAX_IN_FLIGHT = 4096


@dataclass(frozen=True)
class TrafficRequest:
    """One request: its prompt, and the length of its answer in tokens."""

    text: str
    max_tokens: int


class RandomWorkload:
    """Requests with different prompts, all drawn from one seed."""

    def __init__(self, prompts: Prompts, prompt_tokens: int, shortest: int, longest: int, seed: int = 0) -> None:
        self._prompts = prompts
        self._prompt_tokens = prompt_tokens
        self._lengths = (shortest, longest)
        self._random = random.Random(seed)

    def next_request(self) -> TrafficRequest:
        ((text, _),) = self._prompts.next_prompts(1, self._prompt_tokens)
        return TrafficRequest(text, self._random.randint(*self._lengths))


@dataclass
class TrafficCounts:
    """Counts of the outcomes of one phase; `failures` by error code, `messages` with one message for each.

    `delivered` has the tokens that clients received to the end, by whole seconds of the monotonic clock.
    """

    sent: int = 0
    completed: int = 0
    rejected: int = 0
    disconnected: int = 0
    hung: int = 0
    not_sent: int = 0
    """Requests not sent because too many of this client's requests were open."""
    failures: Counter[str] = field(default_factory=Counter)
    messages: dict[str, str] = field(default_factory=dict)
    delivered: Counter[int] = field(default_factory=Counter)

    def deliver(self, tokens: int = 1) -> None:
        self.delivered[int(time.monotonic())] += tokens

    def fail(self, code: str, words: str = "") -> None:
        if code == _OVERLOADED:
            self.rejected += 1
        elif code == "deadline_exceeded":
            self.hung += 1
        else:
            self.failures[code] += 1
            self.messages.setdefault(code, words)

    def tokens_per_second(self, begin: float, end: float) -> float:
        """Return the rate over the whole seconds between two times."""
        seconds = range(int(begin) + 1, int(end))
        return sum(self.delivered[second] for second in seconds) / max(1, len(seconds))


ClientBehaviour = Callable[[AsyncClient, TrafficRequest, TrafficCounts], Coroutine[Any, Any, None]]
"""One client's behaviour: sends its request, and counts the outcome."""


async def read_to_end(client: AsyncClient, request: TrafficRequest, counts: TrafficCounts) -> None:
    """Read the answer to its end."""
    counts.sent += 1
    received = 0
    try:
        async for delta in client.stream(
            request.text, max_tokens=request.max_tokens, sampling=Sampling(end_id=-1), timeout=REQUEST_TIMEOUT
        ):
            made = 1 if delta.output_tokens is None else delta.output_tokens - received
            received += made
            counts.deliver(made)
        counts.completed += 1
    except InflightError as error:
        counts.fail(error.code, str(error))


async def closed_loop(
    address: str, workload: RandomWorkload, in_flight: int, seconds: float, counts: TrafficCounts
) -> None:
    """Run `in_flight` clients, each of which sends its next request when it has its answer."""
    async with AsyncClient(address) as client:
        deadline = time.monotonic() + seconds

        async def one() -> None:
            while time.monotonic() < deadline:
                await read_to_end(client, workload.next_request(), counts)

        await asyncio.gather(*(one() for _ in range(in_flight)))


async def open_loop(
    address: str,
    workload: RandomWorkload,
    per_second: float,
    seconds: float,
    counts: TrafficCounts,
    choose: Callable[[], ClientBehaviour],
) -> None:
    """Start clients at random times (a Poisson process), independent of earlier ones.

    `choose` returns the behaviour of each. Returns when the last of them has gone.
    """
    source = random.Random(1)
    async with AsyncClient(address) as client, asyncio.TaskGroup() as visits:
        deadline = time.monotonic() + seconds
        arrival = time.monotonic()
        open_visits = 0

        async def one(visit: ClientBehaviour) -> None:
            nonlocal open_visits
            open_visits += 1
            try:
                await visit(client, workload.next_request(), counts)
            finally:
                open_visits -= 1

        while (arrival := arrival + source.expovariate(per_second)) < deadline:
            await asyncio.sleep(max(0.0, arrival - time.monotonic()))
            if open_visits < _MAX_IN_FLIGHT:
                visits.create_task(one(choose()))
            else:
                counts.not_sent += 1
