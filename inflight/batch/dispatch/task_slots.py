"""Runs a task for each slot of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class TaskSlots:
    """Runs `work` again and again in as many tasks as there are slots, each until `work` returns False.

    One task per slot and not per row, since rows are many. `work` is given a function that returns whether its task
    still has a slot; a task without one waits for it. `on_task_done` is called with each task that has ended.
    """

    def __init__(
        self,
        work: Callable[[Callable[[], bool]], Awaitable[bool]],
        on_task_done: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self._work, self._on_task_done = work, on_task_done
        self._count = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._parked: list[asyncio.Future[None]] = []

    def resize(self, count: int) -> None:
        """Let so many tasks work; those beyond them finish what they do."""
        grows, self._count = count > self._count, count
        if grows:
            parked, self._parked = self._parked, []
            for future in parked:
                if not future.done():
                    future.set_result(None)
        while len(self._tasks) < count:
            task = asyncio.ensure_future(self._run(len(self._tasks)))
            task.add_done_callback(self._on_task_done)
            self._tasks.append(task)

    async def close(self) -> None:
        """Cancel the tasks."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, slot: int) -> None:
        working = True
        while working:
            while slot >= self._count:
                future = asyncio.get_running_loop().create_future()
                self._parked.append(future)
                await future
            working = await self._work(lambda: slot < self._count)
