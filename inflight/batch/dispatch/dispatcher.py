"""Sends a job's rows to all its servers until each has its answer or its failure."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import Protocol

from inflight.batch.dispatch.backend import Backend
from inflight.batch.dispatch.endpoint import Endpoint
from inflight.batch.dispatch.poison_rows import PoisonRowFinder
from inflight.batch.dispatch.row_queue import Feed, OnRowDone, RowQueue
from inflight.batch.errors import BatchError
from inflight.batch.job.spec import EncodeSpec, RunOptions
from inflight.batch.reporting.progress import ServerStatus

_WATCH_SECONDS = 0.5
_END_SECONDS = 5.0
"""Seconds for cancelled requests to reach their servers."""


class CrashCounts(Protocol):
    """Stores, across runs of a job, how many engines crashed while a row was in flight."""

    crash_counts: dict[int, int]

    def record_crashes(self, number: int, crashes: int) -> None: ...


class NotedCrashes:
    """The crashes of one run, which a resumed job does not know."""

    def __init__(self) -> None:
        self.crash_counts: dict[int, int] = {}

    def record_crashes(self, number: int, crashes: int) -> None:
        self.crash_counts[number] = crashes


class Dispatcher:
    """Gives each row to a server that has a slot free. No row is lost, and none is sent twice at a time.

    `on_row_done` is called once per row, in the event loop, with its answer or error and the number of attempts.
    `check_build` is called with the build of each server's model when it comes up, and now and then; if it raises
    BatchError `job_mismatch`, the server is rejected. So it is with `check_dimensions`, which is called with the size
    of its vectors before a row is sent. `on_message` receives sentences for people.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        options: RunOptions,
        feed: Feed,
        on_row_done: OnRowDone,
        crash_counts: CrashCounts,
        check_build: Callable[[str], None],
        on_message: Callable[[str], None],
        encode: EncodeSpec | None = None,
        check_dimensions: Callable[[int], None] | None = None,
    ) -> None:
        self._backends = backends
        self._server_wait_timeout = options.server_wait_timeout
        suspects = PoisonRowFinder(options.max_engine_crashes, crash_counts.crash_counts, crash_counts.record_crashes)
        self._queue = RowQueue(feed, on_row_done, suspects, self._finish)
        run_id = uuid.uuid4().hex
        self._endpoints = [
            Endpoint(
                *(backend, options, self._queue, suspects, self._is_unavailable, check_build, on_message, run_id),
                encode,
                check_dimensions,
            )
            for backend in backends
        ]
        self._end: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Run until every row is done or, after `stop`, none is in flight.

        Raises BatchError: `server_unreachable` if no server has answered within the wait timeout; if all servers are
        rejected, the last one's reason; and whatever `feed` and `on_row_done` raise.
        """
        self._end = asyncio.get_running_loop().create_future()
        works = (
            self._queue.read(),
            self._check_progress(),
            *(endpoint.run(self._on_task_done) for endpoint in self._endpoints),
        )
        tasks = [asyncio.ensure_future(work) for work in works]
        for task in tasks:
            task.add_done_callback(self._on_task_done)
        try:
            if self._queue.stopped:
                return
            await self._end
        finally:
            self._queue.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_END_SECONDS)
            self._ended.set()

    def stop(self) -> None:
        """Send nothing more. Rows that are not in flight keep no result."""
        self._queue.stop()

    async def drain(self, seconds: float) -> None:
        """Call `stop`, and cancel what is still in flight after this many seconds, on its servers too."""
        self.stop()
        if self._end is None:
            return
        await asyncio.wait((self._end,), timeout=seconds)
        self._finish()
        await self._ended.wait()

    def set_pace(self, priority: int, share: float) -> None:
        """Send rows with this priority; to servers without priorities, a share of what they could take."""
        for endpoint in self._endpoints:
            endpoint.set_pace(priority, share)

    async def close(self) -> None:
        """Close the connections."""
        for backend in self._backends:
            await backend.close()

    @property
    def pending_retries(self) -> int:
        """Rows that were sent, are not in flight, and will be sent again."""
        return self._queue.pending_retries

    def servers(self) -> tuple[ServerStatus, ...]:
        return tuple(endpoint.status() for endpoint in self._endpoints)

    def _finish(self) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(None)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """End the run if a task failed."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self._end is not None and not self._end.done():
            self._end.set_exception(error)

    def _is_unavailable(self, name: str) -> bool:
        now = asyncio.get_running_loop().time()
        return all(endpoint.health.is_unavailable(now) for endpoint in self._endpoints if endpoint.name == name)

    async def _check_progress(self) -> None:
        """Raises BatchError if no further progress is possible."""
        loop = asyncio.get_running_loop()
        heard = loop.time()
        while True:
            now = loop.time()
            heard = max(heard, *(endpoint.last_activity(now) for endpoint in self._endpoints))
            rejections = [endpoint.health.rejected for endpoint in self._endpoints]
            if None not in rejections:
                *_, last = filter(None, rejections)
                raise BatchError(str(last), last.code)
            if self._queue.starved:
                heard = now
            if now - heard > self._server_wait_timeout:
                healths = [each.health for each in self._endpoints if each.health.rejected is None]
                reason = next((f" ({each.last_error})" for each in healths if each.last_error), "; start one")
                raise BatchError(
                    f"no server has answered a row for {self._server_wait_timeout:g} seconds{reason}",
                    "server_unreachable",
                )
            await asyncio.sleep(_WATCH_SECONDS)
