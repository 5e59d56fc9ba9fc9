"""One server of a pool: whether it stands, how many rows it gets, and what happens when it falls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from inflight_client import InflightError

from inflight.batch.backend import Backend
from inflight.batch.errors import BatchError
from inflight.batch.flow.asker import Asker
from inflight.batch.flow.causes import Cause, cause
from inflight.batch.flow.rows import Rows
from inflight.batch.flow.suspects import Group, Suspects
from inflight.batch.flow.throttle import MOST, Throttle
from inflight.batch.flow.workers import Workers
from inflight.batch.job import Running
from inflight.batch.seen.progress import Server

_TICK_SECONDS = 0.1
_LOAD_SECONDS = 1.0
_FIRST_LOADS = 10
"""Looks at the load that come with each tick, when a server begins."""
_BUILD_SECONDS = 15.0
_FIRST_PROBE, _LONGEST_PROBE = 0.25, 15.0
_PROBE_SHARE = 0.2
"""Of the time that a server has been down already, waited before it is asked again: so pauses grow with each."""
_LANDING_SECONDS = 60.0
"""Waited for what is still in flight at a server that fell; of one that is set aside it then goes to others."""
_SETTLE_SECONDS = 0.5
"""For a moment after a death a server may still call itself ready."""
_AWAY_SECONDS = 60.0
_QUICK_DEATHS = 3
_CALM_SECONDS = 12.0
"""Whoever watches a server gives it up if it dies again and again within its first ten seconds. So after some deaths
under suspects it does other work for so long before the next ones are tried."""


class Lane:
    """Asks one server.

    `bind` is given the build of the model that stands there, and raises BatchError where that is not the job's; `say`
    sentences for people. `shut` is why the server gets no row of this job any more. `away` says of a server's name
    whether others should do what waits for it.
    """

    def __init__(
        self,
        backend: Backend,
        running: Running,
        rows: Rows,
        suspects: Suspects,
        bind: Callable[[str], None],
        say: Callable[[str], None],
        life: str,
    ) -> None:
        self.name = backend.name
        self.up = False
        self.shut: BatchError | None = None
        self.trouble: InflightError | None = None
        """What was last wrong with the server."""
        self.away: Callable[[str], bool] = lambda name: False
        self._backend, self._rows, self._suspects = backend, rows, suspects
        self._bind, self._say = bind, say
        self._throttle = Throttle(running.concurrency or MOST)
        self._asker = Asker(backend, running, rows, self._throttle, life, self._halt)
        self._workers = Workers(rows, self._asker.ask, self._fail)
        self._failure: asyncio.Future[None] | None = None
        self._bell = asyncio.Event()
        self._down_since = 0.0
        self._stood = False
        self._risen = 0.0
        self._quick_deaths = 0

    async def run(self) -> None:
        """Work until cancelled, or until the server is shut. Raises what is nobody's answer, as `done` raised it."""
        self._failure = asyncio.get_running_loop().create_future()
        working = asyncio.ensure_future(self._work())
        try:
            await asyncio.wait((working, self._failure), return_when=asyncio.FIRST_COMPLETED)
            (self._failure if self._failure.done() else working).result()
        finally:
            working.cancel()
            await asyncio.wait((working,))
            await self._workers.end()

    def server(self) -> Server:
        """How it stands, for people."""
        return Server(name=self.name, up=self.up, in_flight=self._asker.in_flight, limit=self._throttle.limit)

    def heard(self, now: float) -> float:
        """When it last answered a row; now, where it is at work on some."""
        return now if self.up and self._asker.at_work(now) else self._asker.heard

    def is_away(self, now: float) -> bool:
        """Whether it is down for so long that others should do what waits for it."""
        return self.shut is not None or (not self.up and now - self._down_since > _AWAY_SECONDS)

    async def _work(self) -> None:
        self._down_since = _now()
        while self.shut is None and await self._rise():
            await self._stand()
            self._down_since = _now()
            await self._land()

    async def _rise(self) -> bool:
        """Ask until the server stands and has the job's model; false where it is shut."""
        pause = _FIRST_PROBE
        said = ""
        while True:
            problem = await self._probe()
            if self.shut is not None:
                return False
            if problem is None:
                if said:
                    self._say(f"{self.name} answers.")
                self.up = self._stood = True
                self._risen = _now()
                return True
            if cause(problem) is Cause.SHUT or (problem.code == "host_not_found" and not self._stood):
                self._close(BatchError(str(problem), problem.code))
                return False
            if problem.code != said:
                said = problem.code
                self._say(f"{self.name} does not answer now, and is asked until it does: {problem}")
            self.trouble = problem
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(max(pause, (_now() - self._down_since) * _PROBE_SHARE), _LONGEST_PROBE)

    async def _probe(self) -> InflightError | None:
        """What keeps the server from answering, if anything does."""
        try:
            await self._check_build()
            if self.shut is None and not await self._backend.ready():
                return InflightError("the model is not ready", "model_not_ready")
            if self.shut is None and self._asker.refuses:
                return await self._asker.try_short()
        except InflightError as error:
            return error
        return None

    async def _check_build(self) -> None:
        """Another model than the job's sets the server aside: somebody may have deployed it at this address."""
        build = await self._backend.build()
        try:
            self._bind(build)
        except BatchError as error:
            if error.code != "job_mismatch":
                raise
            self._close(error)

    async def _stand(self) -> None:
        """Give it rows while it stands, as many as the throttle has places."""
        looks, next_look, next_build = 0, 0.0, _now() + _BUILD_SECONDS
        self._asker.trouble = None
        self._bell.clear()
        while self.shut is None and self._asker.trouble is None:
            now = _now()
            if now >= next_look:
                looks += 1
                await self._look()
                next_look = now + (_TICK_SECONDS if looks < _FIRST_LOADS else _LOAD_SECONDS)
            if now >= next_build:
                next_build = now + _BUILD_SECONDS
                await self._look_at_build()
            if self.shut is None and (group := self._next_group(now)) is not None:
                await self._try(group)
            else:
                self._workers.open(0 if self._throttle.paused(now) else self._throttle.limit)
                await self._tick()
        self.up = False
        self.trouble = self._asker.trouble
        self._workers.open(0)

    async def _tick(self) -> None:
        """A moment, or until something is wrong."""
        try:
            async with asyncio.timeout(_TICK_SECONDS):
                await self._bell.wait()
        except TimeoutError:
            pass
        self._bell.clear()

    def _halt(self) -> None:
        self._workers.open(0)
        if self._asker.trouble is not None:
            self._bell.set()

    async def _look(self) -> None:
        try:
            load = await self._backend.load()
        except InflightError:
            self._throttle.unseen()
        else:
            self._throttle.see(load, self._asker.in_flight, _now())

    async def _look_at_build(self) -> None:
        try:
            await self._check_build()
        except InflightError as error:
            if cause(error) is Cause.SHUT:
                self._close(BatchError(str(error), error.code))
            # else a row finds out, if it lasts

    async def _land(self) -> None:
        """Wait until nothing is in flight at a server that fell, and hand over what was."""
        until = _now() + _LANDING_SECONDS
        while self._asker.in_flight and _now() < until:  # noqa: ASYNC110  rare, so no event for each row's end
            await asyncio.sleep(_TICK_SECONDS / 2)
        self._suspects.fell(self.name, self._asker.take_fallen()[0])
        await asyncio.sleep(_SETTLE_SECONDS)

    def _close(self, error: BatchError) -> None:
        self.shut = error
        self.up = False
        self._workers.open(0)
        self._say(f"{self.name} is set aside: {error}")

    def _next_group(self, now: float) -> Group | None:
        if self._suspects.empty or self._rows.stopped or self._throttle.paused(now):
            return None
        if self._quick_deaths >= _QUICK_DEATHS and now - self._risen < _CALM_SECONDS:
            return None
        return self._suspects.next(self.name, self.away)

    async def _try(self, group: Group) -> None:
        """Ask the rows of a group, and no others, once nothing else is in flight here."""
        asker = self._asker
        self._workers.open(0)
        while asker.in_flight and asker.trouble is None:  # noqa: ASYNC110  as in _land
            await asyncio.sleep(_TICK_SECONDS / 2)
        if asker.trouble is not None:
            self._suspects.put_back(group)
            return
        asker.apart = frozenset(row.number for row in group.rows)
        tasks = [asyncio.ensure_future(asker.ask(row)) for row in group.rows]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        untaken, asker.untaken, asker.apart = asker.untaken, [], frozenset()
        if untaken:
            self._suspects.put_back(Group(tuple(untaken), self.name))
        fallen, died = asker.take_fallen()
        if fallen:
            self._quick_deaths = self._quick_deaths + 1 if _now() - self._risen < _CALM_SECONDS else 0
        for row in self._suspects.fell_again(self.name, group, fallen, died):
            self._rows.end(row, self._suspects.sentence(row), sent=0)

    def _fail(self, error: BaseException) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)


def _now() -> float:
    return asyncio.get_running_loop().time()
