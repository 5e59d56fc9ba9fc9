"""Servers that do what a test wants, feeds, and what became of rows; for the pool's own logic, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from inflight_client import InflightError
from inflight_client.results import Generation, Timings, Usage

from inflight.batch.backend import Backend, Load
from inflight.batch.flow.pool import Pool
from inflight.batch.job import Running
from inflight.batch.row import Ask, Row

Behaviour = Callable[["Scripted", str], Awaitable[str | InflightError]]


async def echo(server: Scripted, prompt: str) -> str | InflightError:
    await asyncio.sleep(0.001)
    return prompt


class Scripted:
    """A Backend whose answers and health a test decides."""

    def __init__(self, behaviour: Behaviour = echo, name: str = "scripted", build: str = "one") -> None:
        self.name = name
        self.behaviour = behaviour
        self.model: str | InflightError = build
        self.stands = True
        self.told: Load | None = None
        self.asked: list[str] = []
        self.in_flight = 0
        self.most = 0
        self.together: list[frozenset[str]] = []
        self.cancelled: list[str] = []
        self._open: set[str] = set()

    async def ask(self, ask: Ask, request_id: str) -> Generation:
        prompt = str(ask.prompt)
        self.asked.append(prompt)
        self._open.add(prompt)
        self.together.append(frozenset(self._open))
        self.most = max(self.most, len(self._open))
        try:
            answer = await self.behaviour(self, prompt)
        except asyncio.CancelledError:
            self.cancelled.append(prompt)
            raise
        finally:
            self._open.discard(prompt)
        if isinstance(answer, InflightError):
            raise answer
        return Generation(answer, "stop", Usage(1, 1), Timings(0, 0), request_id)

    async def load(self) -> Load:
        if self.told is None:
            raise InflightError("no page", "server_unreachable")
        return self.told

    async def ready(self) -> bool:
        return self.stands

    async def build(self) -> str:
        if isinstance(self.model, InflightError):
            raise InflightError(str(self.model), self.model.code)
        return self.model

    async def close(self) -> None:
        pass


class Listed:
    """A feed of rows that are there, after which comes whatever a test says."""

    def __init__(self, prompts: Iterable[str], wait: asyncio.Event | None = None) -> None:
        self.rows = [Row(number, number + 1, f"row-{number}", Ask(one, 4)) for number, one in enumerate(prompts)]
        self._left = iter(self.rows)
        self._wait = wait

    async def take(self) -> Row | None:
        row = next(self._left, None)
        if row is None and self._wait is not None:
            await self._wait.wait()
        return row


class Remembered:
    """What a job keeps of engines' deaths."""

    def __init__(self, deaths: dict[int, int] | None = None) -> None:
        self.deaths = deaths or {}
        self.noted: list[tuple[int, int]] = []

    def note_deaths(self, number: int, deaths: int) -> None:
        self.noted.append((number, deaths))


class Asked:
    """A pool with all that it tells."""

    def __init__(
        self,
        backends: Sequence[Backend],
        feed: Listed,
        bind: Callable[[str], None] = lambda build: None,
        deaths: dict[int, int] | None = None,
        **running: object,
    ) -> None:
        self.answers: dict[int, str] = {}
        self.errors: dict[int, str] = {}
        self.attempts: dict[int, int] = {}
        self.sentences: list[str] = []
        self.remembered = Remembered(deaths)
        settings = Running.model_validate(running)
        self.pool = Pool(backends, settings, feed, self._done, self.remembered, bind, self.sentences.append)

    def _done(self, row: Row, result: Generation | InflightError, attempts: int) -> None:
        assert row.number not in self.attempts, "a row ended twice"
        self.attempts[row.number] = attempts
        if isinstance(result, InflightError):
            self.errors[row.number] = result.code
        else:
            self.answers[row.number] = result.text

    async def run(self, seconds: float = 60.0) -> Asked:
        async with asyncio.timeout(seconds):
            await self.pool.run()
            await self.pool.close()
        return self


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so, which nobody tells."""
    async with asyncio.timeout(60.0):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
