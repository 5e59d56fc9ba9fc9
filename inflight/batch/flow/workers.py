"""The workers of one server: each asks one row after another, while there is a place for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from inflight.batch.flow.rows import Rows
from inflight.batch.row import Row


class Workers:
    """As many tasks as there have been places; a task for each worker and not for each row, since rows are many."""

    def __init__(
        self, rows: Rows, ask: Callable[[Row], Awaitable[None]], failed: Callable[[BaseException], None]
    ) -> None:
        self._rows, self._ask, self._failed = rows, ask, failed
        self._places = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._parked: list[asyncio.Future[None]] = []

    def open(self, places: int) -> None:
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
            task = asyncio.ensure_future(self._work(len(self._tasks)))
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    async def end(self) -> None:
        """Cancel them, and wait until they are gone."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _work(self, place: int) -> None:
        rows = self._rows
        while True:
            while place >= self._places:
                future = asyncio.get_running_loop().create_future()
                self._parked.append(future)
                await future
            row = await rows.take()
            if row is None:
                return
            if place < self._places:
                await self._ask(row)
            else:
                rows.put_back(row)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)
