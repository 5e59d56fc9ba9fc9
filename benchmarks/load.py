"""Load on a running server: so many requests at a time, or so many a second, and what became of each of them."""

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

PATIENCE_SECONDS = 300.0
"""A request without an end after so long is counted as hanging."""
_OVERLOADED = "overloaded"
_MOST_OPEN = 4096


@dataclass(frozen=True)
class Ask:
    """One request: its prompt, and the length of its answer in tokens."""

    text: str
    max_tokens: int


class Workload:
    """Requests to send, each with a prompt of its own, all drawn from one seed."""

    def __init__(self, prompts: Prompts, prompt_tokens: int, shortest: int, longest: int, seed: int = 0) -> None:
        self._prompts = prompts
        self._prompt_tokens = prompt_tokens
        self._lengths = (shortest, longest)
        self._random = random.Random(seed)

    def ask(self) -> Ask:
        ((text, _),) = self._prompts.take(1, self._prompt_tokens)
        return Ask(text, self._random.randint(*self._lengths))


@dataclass
class Tally:
    """What became of the requests of one phase, counted; `broken` by error code, `words` with one sentence for each.

    `delivered` has the tokens that came to clients that stayed, by whole seconds of the monotonic clock.
    """

    sent: int = 0
    completed: int = 0
    refused: int = 0
    vanished: int = 0
    hanging: int = 0
    unsent: int = 0
    """Not sent, since too many of this client's requests were open."""
    broken: Counter[str] = field(default_factory=Counter)
    words: dict[str, str] = field(default_factory=dict)
    delivered: Counter[int] = field(default_factory=Counter)

    def deliver(self, tokens: int = 1) -> None:
        self.delivered[int(time.monotonic())] += tokens

    def fail(self, code: str, words: str = "") -> None:
        if code == _OVERLOADED:
            self.refused += 1
        elif code == "deadline_exceeded":
            self.hanging += 1
        else:
            self.broken[code] += 1
            self.words.setdefault(code, words)

    def tokens_per_second(self, begin: float, end: float) -> float:
        """Over the whole seconds between two moments."""
        seconds = range(int(begin) + 1, int(end))
        return sum(self.delivered[second] for second in seconds) / max(1, len(seconds))


Visit = Callable[[AsyncClient, Ask, Tally], Coroutine[Any, Any, None]]
"""One client's stay: sends its request, and counts in the tally what became of it."""


async def stay(client: AsyncClient, ask: Ask, tally: Tally) -> None:
    """Read the answer to its end."""
    tally.sent += 1
    told = 0
    try:
        async for delta in client.stream(
            ask.text, max_tokens=ask.max_tokens, sampling=Sampling(end_id=-1), timeout=PATIENCE_SECONDS
        ):
            made = 1 if delta.output_tokens is None else delta.output_tokens - told
            told += made
            tally.deliver(made)
        tally.completed += 1
    except InflightError as error:
        tally.fail(error.code, str(error))


async def closed_loop(address: str, workload: Workload, in_flight: int, seconds: float, tally: Tally) -> None:
    """`in_flight` clients, each of which sends its next request when it has its answer."""
    async with AsyncClient(address) as client:
        deadline = time.monotonic() + seconds

        async def one() -> None:
            while time.monotonic() < deadline:
                await stay(client, workload.ask(), tally)

        await asyncio.gather(*(one() for _ in range(in_flight)))


async def open_loop(
    address: str, workload: Workload, per_second: float, seconds: float, tally: Tally, choose: Callable[[], Visit]
) -> None:
    """Clients that come at random moments (a Poisson process), whatever became of those before them.

    `choose` says for each how it behaves. Returns when the last of them has gone.
    """
    source = random.Random(1)
    async with AsyncClient(address) as client, asyncio.TaskGroup() as visits:
        deadline = time.monotonic() + seconds
        arrival = time.monotonic()
        open_visits = 0

        async def one(visit: Visit) -> None:
            nonlocal open_visits
            open_visits += 1
            try:
                await visit(client, workload.ask(), tally)
            finally:
                open_visits -= 1

        while (arrival := arrival + source.expovariate(per_second)) < deadline:
            await asyncio.sleep(max(0.0, arrival - time.monotonic()))
            if open_visits < _MOST_OPEN:
                visits.create_task(one(choose()))
            else:
                tally.unsent += 1
