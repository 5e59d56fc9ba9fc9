"""One server of a pool: whether it stands, how many rows it gets, and what happens when it falls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from inflight_client import InflightError

from inflight.batch.dispatch.backend import Backend
from inflight.batch.dispatch.concurrency_limit import MAX_LIMIT, AdaptiveLimit
from inflight.batch.dispatch.failure_kind import FailureKind, classify_failure
from inflight.batch.dispatch.poison_rows import PoisonRowFinder, SuspectGroup
from inflight.batch.dispatch.row_queue import RowQueue
from inflight.batch.dispatch.sender import RowSender
from inflight.batch.dispatch.sender_pool import SenderPool
from inflight.batch.errors import BatchError
from inflight.batch.job.spec import RunOptions
from inflight.batch.reporting.progress import ServerStatus

_TICK_SECONDS = 0.1
_LOAD_SECONDS = 1.0
_INITIAL_LOAD_POLLS = 10
"""Looks at the load that come with each tick, when a server begins."""
_BUILD_SECONDS = 15.0
_PROBE_WAIT_INITIAL, _PROBE_WAIT_MAX = 0.25, 15.0
_PROBE_DOWNTIME_FRACTION = 0.2
"""Of the time that a server has been down already, waited before it is asked again: so pauses grow with each."""
_IDLE_TIMEOUT = 60.0
"""Waited for what is still in flight at a server that fell; of one that is set aside it then goes to others."""
_AFTER_CRASH_SECONDS = 0.5
"""For a moment after a death a server may still call itself ready."""
_UNAVAILABLE_SECONDS = 60.0
_MAX_QUICK_CRASHES = 3
_CRASH_COOLDOWN_SECONDS = 12.0
"""Whoever watches a server gives it up if it dies again and again within its first ten seconds. So after some deaths
under suspects it does other work for so long before the next ones are tried."""


class Endpoint:
    """Asks one server.

    `bind` is given the build of the model that stands there, and raises BatchError where that is not the job's; `say`
    sentences for people. `shut` is why the server gets no row of this job any more. `away` says of a server's name
    whether others should do what waits for it.
    """

    def __init__(
        self,
        backend: Backend,
        options: RunOptions,
        queue: RowQueue,
        poison_rows: PoisonRowFinder,
        check_build: Callable[[str], None],
        on_message: Callable[[str], None],
        run_id: str,
    ) -> None:
        self.name = backend.name
        self.up = False
        self.rejected: BatchError | None = None
        self.last_error: InflightError | None = None
        """What was last wrong with the server."""
        self.endpoint_is_unavailable: Callable[[str], bool] = lambda name: False
        self._backend, self._queue, self._poison_rows = backend, queue, poison_rows
        self._check_build, self._on_message = check_build, on_message
        self._limit = AdaptiveLimit(options.concurrency or MAX_LIMIT)
        self._sender = RowSender(backend, options, queue, self._limit, run_id, self._pause)
        self._workers = SenderPool(queue, self._sender.send, self._fail)
        self._failure: asyncio.Future[None] | None = None
        self._wakeup = asyncio.Event()
        self._down_since = 0.0
        self._was_ready = False
        self._ready_since = 0.0
        self._quick_crashes = 0

    async def run(self) -> None:
        """Work until cancelled, or until the server is shut. Raises what is nobody's answer, as `done` raised it."""
        self._failure = asyncio.get_running_loop().create_future()
        working = asyncio.ensure_future(self._connect_and_serve())
        try:
            await asyncio.wait((working, self._failure), return_when=asyncio.FIRST_COMPLETED)
            (self._failure if self._failure.done() else working).result()
        finally:
            working.cancel()
            await asyncio.wait((working,))
            await self._workers.cancel()

    def status(self) -> ServerStatus:
        """How it stands, for people."""
        return ServerStatus(
            name=self.name, up=self.up, in_flight=self._sender.in_flight, concurrency_limit=self._limit.limit
        )

    def last_activity(self, now: float) -> float:
        """When it last answered a row; now, where it is at work on some."""
        return now if self.up and self._sender.is_busy(now) else self._sender.last_answer_at

    def is_unavailable(self, now: float) -> bool:
        """Whether it is down for so long that others should do what waits for it."""
        return self.rejected is not None or (not self.up and now - self._down_since > _UNAVAILABLE_SECONDS)

    async def _connect_and_serve(self) -> None:
        self._down_since = _now()
        while self.rejected is None and await self._connect():
            await self._serve()
            self._down_since = _now()
            await self._await_idle()

    async def _connect(self) -> bool:
        """Ask until the server stands and has the job's model; false where it is shut."""
        pause = _PROBE_WAIT_INITIAL
        said = ""
        while True:
            problem = await self._probe()
            if self.rejected is not None:
                return False
            if problem is None:
                if said:
                    self._on_message(f"{self.name} answers.")
                self.up = self._was_ready = True
                self._ready_since = _now()
                return True
            if classify_failure(problem) is FailureKind.REJECTED or (
                problem.code == "host_not_found" and not self._was_ready
            ):
                self._reject(BatchError(str(problem), problem.code))
                return False
            if problem.code != said:
                said = problem.code
                self._on_message(f"{self.name} does not answer now, and is asked until it does: {problem}")
            self.last_error = problem
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(max(pause, (_now() - self._down_since) * _PROBE_DOWNTIME_FRACTION), _PROBE_WAIT_MAX)

    async def _probe(self) -> InflightError | None:
        """What keeps the server from answering, if anything does."""
        try:
            await self._verify_build()
            if self.rejected is None and not await self._backend.ready():
                return InflightError("the model is not ready", "model_not_ready")
            if self.rejected is None and self._sender.rejects_probe:
                return await self._sender.probe_generation()
        except InflightError as error:
            return error
        return None

    async def _verify_build(self) -> None:
        """Another model than the job's sets the server aside: somebody may have deployed it at this address."""
        build = await self._backend.build()
        try:
            self._check_build(build)
        except BatchError as error:
            if error.code != "job_mismatch":
                raise
            self._reject(error)

    async def _serve(self) -> None:
        """Give it rows while it stands, as many as the throttle has places."""
        looks, next_look, next_build = 0, 0.0, _now() + _BUILD_SECONDS
        self._sender.server_error = None
        self._wakeup.clear()
        while self.rejected is None and self._sender.server_error is None:
            now = _now()
            if now >= next_look:
                looks += 1
                await self._poll_load()
                next_look = now + (_TICK_SECONDS if looks < _INITIAL_LOAD_POLLS else _LOAD_SECONDS)
            if now >= next_build:
                next_build = now + _BUILD_SECONDS
                await self._poll_build()
            if self.rejected is None and (group := self._next_group(now)) is not None:
                await self._try_group(group)
            else:
                self._workers.resize(0 if self._limit.paused(now) else self._limit.limit)
                await self._tick()
        self.up = False
        self.last_error = self._sender.server_error
        self._workers.resize(0)

    async def _tick(self) -> None:
        """A moment, or until something is wrong."""
        try:
            async with asyncio.timeout(_TICK_SECONDS):
                await self._wakeup.wait()
        except TimeoutError:
            pass
        self._wakeup.clear()

    def _pause(self) -> None:
        self._workers.resize(0)
        if self._sender.server_error is not None:
            self._wakeup.set()

    async def _poll_load(self) -> None:
        try:
            load = await self._backend.load()
        except InflightError:
            self._limit.load_unknown()
        else:
            self._limit.observe(load, self._sender.in_flight, _now())

    async def _poll_build(self) -> None:
        try:
            await self._verify_build()
        except InflightError as error:
            if classify_failure(error) is FailureKind.REJECTED:
                self._reject(BatchError(str(error), error.code))
            # else a row finds out, if it lasts

    async def _await_idle(self) -> None:
        """Wait until nothing is in flight at a server that fell, and hand over what was."""
        until = _now() + _IDLE_TIMEOUT
        while self._sender.in_flight and _now() < until:  # noqa: ASYNC110  rare, so no event for each row's end
            await asyncio.sleep(_TICK_SECONDS / 2)
        self._poison_rows.add_crash(self.name, self._sender.take_crashed()[0])
        await asyncio.sleep(_AFTER_CRASH_SECONDS)

    def _reject(self, error: BatchError) -> None:
        self.rejected = error
        self.up = False
        self._workers.resize(0)
        self._on_message(f"{self.name} is set aside: {error}")

    def _next_group(self, now: float) -> SuspectGroup | None:
        if self._poison_rows.empty or self._queue.stopped or self._limit.paused(now):
            return None
        if self._quick_crashes >= _MAX_QUICK_CRASHES and now - self._ready_since < _CRASH_COOLDOWN_SECONDS:
            return None
        return self._poison_rows.next_group(self.name, self.endpoint_is_unavailable)

    async def _try_group(self, group: SuspectGroup) -> None:
        """Ask the rows of a group, and no others, once nothing else is in flight here."""
        asker = self._sender
        self._workers.resize(0)
        while asker.in_flight and asker.server_error is None:  # noqa: ASYNC110  as in _await_idle
            await asyncio.sleep(_TICK_SECONDS / 2)
        if asker.server_error is not None:
            self._poison_rows.put_back(group)
            return
        asker.isolated = frozenset(row.number for row in group.rows)
        tasks = [asyncio.ensure_future(asker.send(row)) for row in group.rows]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        untaken, asker.not_accepted, asker.isolated = asker.not_accepted, [], frozenset()
        if untaken:
            self._poison_rows.put_back(SuspectGroup(tuple(untaken), self.name))
        fallen, died = asker.take_crashed()
        if fallen:
            self._quick_crashes = self._quick_crashes + 1 if _now() - self._ready_since < _CRASH_COOLDOWN_SECONDS else 0
        for row in self._poison_rows.add_group_crash(self.name, group, fallen, died):
            self._queue.finish(row, self._poison_rows.error_for(row), sent=0)

    def _fail(self, error: BaseException) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)


def _now() -> float:
    return asyncio.get_running_loop().time()
