"""Asks a job's rows of all its servers, until each has its answer or its failure."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from inflight.batch.backend import Backend
from inflight.batch.errors import BatchError
from inflight.batch.flow.lane import Lane
from inflight.batch.flow.rows import Done, Feed, Rows
from inflight.batch.flow.suspects import Suspects
from inflight.batch.job import Running
from inflight.batch.seen.progress import Server

_WATCH_SECONDS = 0.5
_END_SECONDS = 5.0
"""For requests that are cancelled, until their servers know."""


class Deaths(Protocol):
    """Under which rows, by their numbers, engines have died, as a job remembers it across its lives."""

    deaths: dict[int, int]

    def note_deaths(self, number: int, deaths: int) -> None: ...


@dataclass(frozen=True)
class PoolState:
    """`in_flight` rows are at servers, `waiting` ones were sent and will be again."""

    in_flight: int
    waiting: int
    servers: tuple[Server, ...]


class Pool:
    """A row goes to whichever server has a place. Nothing is lost on the way and nothing is sent twice at a time.

    `done` is told of each row once, in the event loop: its answer or its error, and how often it was sent. `bind` is
    given the build of each server's model when it comes up, and now and then; where it raises BatchError
    `job_mismatch`, the server is set aside. `say` gets sentences for people.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        running: Running,
        feed: Feed,
        done: Done,
        deaths: Deaths,
        bind: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._backends = backends
        self._patience = running.patience
        suspects = Suspects(running.kills, deaths.deaths, deaths.note_deaths)
        self._rows = Rows(feed, done, suspects, self._finish)
        life = uuid.uuid4().hex
        self._lanes = [Lane(one, running, self._rows, suspects, bind, say, life) for one in backends]
        for lane in self._lanes:
            lane.away = self._is_away
        self._end: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Until every row has ended, or, after `stop`, none is in flight.

        Raises BatchError: `server_unreachable` where no server has answered for the job's patience; where all of them
        are set aside, the last one's reason; and whatever `feed` and `done` raise.
        """
        self._end = asyncio.get_running_loop().create_future()
        works = (self._rows.read(), self._watch(), *(lane.run() for lane in self._lanes))
        tasks = [asyncio.ensure_future(work) for work in works]
        for task in tasks:
            task.add_done_callback(self._see)
        try:
            if self._rows.stopped:
                return
            await self._end
        finally:
            self._rows.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_END_SECONDS)
            self._ended.set()

    def stop(self) -> None:
        """Send nothing more. What is not in flight stays without an outcome."""
        self._rows.stop()

    async def drain(self, seconds: float) -> None:
        """`stop`, and end what is still in flight after so many seconds, on its servers too."""
        self.stop()
        if self._end is None:
            return
        await asyncio.wait((self._end,), timeout=seconds)
        self._finish()
        await self._ended.wait()

    async def close(self) -> None:
        """Close the connections."""
        for backend in self._backends:
            await backend.close()

    def state(self) -> PoolState:
        return PoolState(self._rows.flying, self._rows.waiting, tuple(lane.server() for lane in self._lanes))

    def _finish(self) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(None)

    def _see(self, task: asyncio.Task[None]) -> None:
        """A part that failed ends the whole."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self._end is not None and not self._end.done():
            self._end.set_exception(error)

    def _is_away(self, name: str) -> bool:
        now = asyncio.get_running_loop().time()
        return all(lane.is_away(now) for lane in self._lanes if lane.name == name)

    async def _watch(self) -> None:
        """Raises BatchError once nothing can be hoped for."""
        loop = asyncio.get_running_loop()
        heard = loop.time()
        while True:
            now = loop.time()
            heard = max(heard, *(lane.heard(now) for lane in self._lanes))
            open_lanes = [lane for lane in self._lanes if lane.shut is None]
            if not open_lanes:
                raise BatchError(*_reason([lane.shut for lane in self._lanes if lane.shut is not None]))
            if self._rows.starved:
                heard = now
            if now - heard > self._patience:
                told = next((f" ({lane.trouble})" for lane in open_lanes if lane.trouble is not None), "; start one")
                raise BatchError(
                    f"no server has answered a row for {self._patience:g} seconds{told}", "server_unreachable"
                )
            await asyncio.sleep(_WATCH_SECONDS)


def _reason(shut: list[BatchError]) -> tuple[str, str]:
    return str(shut[-1]), shut[-1].code
