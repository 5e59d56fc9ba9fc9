"""Concurrent calls for many prompts or texts, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from typing import Any, Protocol

from inflight_client.call import Prompt
from inflight_client.result_order import (
    CLOSE_TIMEOUT,
    READ_AHEAD_FACTOR,
    ResultOrder,
    SourceEnd,
)

AsyncPrompts = Iterable[Prompt] | AsyncIterable[Prompt]

_END: Any = object()


class AsyncRunningCall(Protocol):
    """A call that is sent when its result is read; closing it cancels it."""

    async def read(self) -> Any: ...
    async def close(self) -> None: ...


class AsyncCallRunner:
    """Runs calls in its own tasks, one for each prompt; for one use.

    One task reads each prompt when a slot is free, so an asynchronous source that waits blocks nothing else.
    A synchronous source is read in the event loop and blocks it while it waits.
    """

    def __init__(self, start: Callable[[Any], AsyncRunningCall], concurrency: int) -> None:
        self._start = start
        self._free_slots = asyncio.Semaphore(concurrency)
        self._read_ahead = asyncio.Semaphore(READ_AHEAD_FACTOR * concurrency)
        self._results: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def outcomes(
        self, prompts: Iterable[Any] | AsyncIterable[Any], handout: ResultOrder
    ) -> AsyncGenerator[Any, None]:
        """Yield the results in the order of `handout`; all tasks end with the generator."""
        try:
            self._create_task(self._read(prompts))
            while not handout.done:
                for outcome in handout.add(*await self._results.get()):
                    self._read_ahead.release()
                    yield outcome
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT)

    def _create_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, prompts: Iterable[Any] | AsyncIterable[Any]) -> None:
        try:
            await self._read_on(aiter(prompts) if isinstance(prompts, AsyncIterable) else iter(prompts))
        except BaseException as error:  # from the caller's source; raised to the caller
            self._results.put_nowait((self._count, SourceEnd(error)))
        else:
            self._results.put_nowait((self._count, SourceEnd()))

    async def _read_on(self, source: AsyncIterator[Any] | Iterator[Any]) -> None:
        """Read all prompts and start a task for each."""
        while True:
            await self._free_slots.acquire()
            await self._read_ahead.acquire()
            prompt = await anext(source, _END) if isinstance(source, AsyncIterator) else next(source, _END)
            if prompt is _END:
                return
            self._create_task(self._run(self._count, prompt))
            self._count += 1
            await asyncio.sleep(0)  # let other tasks run between prompts of a synchronous source

    async def _run(self, place: int, prompt: Any) -> None:
        try:
            call = self._start(prompt)
            try:
                outcome: Any = await call.read()
            finally:
                await call.close()
        except BaseException as error:  # other exceptions are raised in place of the answer
            outcome = error
        self._results.put_nowait((place, outcome))
        self._free_slots.release()
