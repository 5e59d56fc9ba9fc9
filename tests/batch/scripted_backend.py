"""Servers that do what a test wants, feeds, and what became of rows; for the pool's own logic, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from inflight_client import InflightError
from inflight_client.results import Generation, Timings, Usage

from inflight.batch.dispatch.backend import Backend, ServerLoad
from inflight.batch.dispatch.dispatcher import Dispatcher
from inflight.batch.job.rows import Row, RowRequest
from inflight.batch.job.spec import RunOptions

Behaviour = Callable[["ScriptedBackend", str], Awaitable[str | InflightError]]


async def echo(server: ScriptedBackend, prompt: str) -> str | InflightError:
    await asyncio.sleep(0.001)
    return prompt


class ScriptedBackend:
    """A Backend whose answers and health a test decides."""

    def __init__(self, behaviour: Behaviour = echo, name: str = "scripted", build: str = "one") -> None:
        self.name = name
        self.behaviour = behaviour
        self.model: str | InflightError = build
        self.is_ready = True
        self.load_answer: ServerLoad | None = None
        self.asked: list[str] = []
        self.in_flight = 0
        self.most = 0
        self.together: list[frozenset[str]] = []
        self.cancelled: list[str] = []
        self._open: set[str] = set()

    async def generate(self, request: RowRequest, request_id: str) -> Generation:
        prompt = str(request.prompt)
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

    async def load(self) -> ServerLoad:
        if self.load_answer is None:
            raise InflightError("no page", "server_unreachable")
        return self.load_answer

    async def ready(self) -> bool:
        return self.is_ready

    async def build(self) -> str:
        if isinstance(self.model, InflightError):
            raise InflightError(str(self.model), self.model.code)
        return self.model

    async def close(self) -> None:
        pass


class ListFeed:
    """A feed of rows that are there, after which comes whatever a test says."""

    def __init__(self, prompts: Iterable[str], wait: asyncio.Event | None = None) -> None:
        self.rows = [Row(number, number + 1, f"row-{number}", RowRequest(one, 4)) for number, one in enumerate(prompts)]
        self._left = iter(self.rows)
        self._wait = wait

    async def get(self) -> Row | None:
        row = next(self._left, None)
        if row is None and self._wait is not None:
            await self._wait.wait()
        return row


class RecordedCrashes:
    """What a job keeps of engines' deaths."""

    def __init__(self, crash_counts: dict[int, int] | None = None) -> None:
        self.crash_counts = crash_counts or {}
        self.noted: list[tuple[int, int]] = []

    def record_crashes(self, number: int, crashes: int) -> None:
        self.noted.append((number, crashes))


class DispatchRun:
    """A pool with all that it tells."""

    def __init__(
        self,
        backends: Sequence[Backend],
        feed: ListFeed,
        check_build: Callable[[str], None] = lambda build: None,
        crash_counts: dict[int, int] | None = None,
        **options: object,
    ) -> None:
        self.answers: dict[int, str] = {}
        self.errors: dict[int, str] = {}
        self.attempts: dict[int, int] = {}
        self.messages: list[str] = []
        self.recorded = RecordedCrashes(crash_counts)
        settings = RunOptions.model_validate(options)
        self.dispatcher = Dispatcher(
            backends, settings, feed, self._done, self.recorded, check_build, self.messages.append
        )

    def _done(self, row: Row, result: Generation | InflightError, attempts: int) -> None:
        assert row.number not in self.attempts, "a row ended twice"
        self.attempts[row.number] = attempts
        if isinstance(result, InflightError):
            self.errors[row.number] = result.code
        else:
            self.answers[row.number] = result.text

    async def run(self, seconds: float = 60.0) -> DispatchRun:
        async with asyncio.timeout(seconds):
            await self.dispatcher.run()
            await self.dispatcher.close()
        return self
