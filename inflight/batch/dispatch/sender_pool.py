"""The workers of one server: each asks one row after another, while there is a place for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from inflight.batch.dispatch.row_queue import RowQueue
from inflight.batch.job.rows import Row


class SenderPool:
    """As many tasks as there have been places; a task for each worker and not for each row, since rows are many."""

    def __init__(
        self, queue: RowQueue, send: Callable[[Row], Awaitable[None]], on_failure: Callable[[BaseException], None]
    ) -> None:
        self._queue, self._send, self._on_failure = queue, send, on_failure
        self._places = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._parked: list[asyncio.Future[None]] = []

    def resize(self, places: int) -> None:
        """So many may send; those beyond them finish the row that they have."""
        if places == self._places:
            return
        grows, self._places = places > self._places, places
        if not grows:
            return
        parked, self._parked = self._parked, []
        for future in parked:
            if not future.done():
                future.set_result(None)
        while len(self._tasks) < places:
            task = asyncio.ensure_future(self._send_rows(len(self._tasks)))
            task.add_done_callback(self._on_task_done)
            self._tasks.append(task)

    async def cancel(self) -> None:
        """Cancel them, and wait until they are gone."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _send_rows(self, place: int) -> None:
        rows = self._queue
        while True:
            while place >= self._places:
                future = asyncio.get_running_loop().create_future()
                self._parked.append(future)
                await future
            row = await rows.get()
            if row is None:
                return
            if place < self._places:
                await self._send(row)
            else:
                rows.put_back(row)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
