"""Many prompts at once, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable

from inflight_client.aio_stream import AsyncStream
from inflight_client.call import Prompt
from inflight_client.errors import InflightError
from inflight_client.many import AHEAD, Outcome

Prompts = Iterable[Prompt] | AsyncIterable[Prompt]


class AsyncMany:
    """Runs prompts in tasks of its own, which end with it. Use `async with`."""

    def __init__(self, start: Callable[[Prompt], AsyncStream], concurrency: int) -> None:
        self._start = start
        self._ahead = AHEAD * concurrency
        self._places = asyncio.Semaphore(concurrency)
        self._running: list[asyncio.Task[tuple[int, Outcome]]] = []

    async def in_order(self, prompts: Prompts) -> AsyncIterator[tuple[int, Outcome]]:
        """What came of each prompt, with its place, in the order of the prompts."""
        source = _numbered(prompts)
        while await self._fill(source):
            yield await self._running[0]
            self._running.pop(0)

    async def as_completed(self, prompts: Prompts) -> AsyncIterator[tuple[int, Outcome]]:
        """What came of each prompt, with its place, as soon as it is there."""
        source = _numbered(prompts)
        while await self._fill(source):
            done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                self._running.remove(task)
                yield task.result()

    async def __aenter__(self) -> AsyncMany:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _fill(self, source: AsyncIterator[tuple[int, Prompt]]) -> bool:
        """Start prompts until enough are on their way, or there are no more; false once none is."""
        while len(self._running) < self._ahead:
            found = await anext(source, None)
            if found is None:
                break
            self._running.append(asyncio.create_task(self._run(*found)))
        return bool(self._running)

    async def _run(self, place: int, prompt: Prompt) -> tuple[int, Outcome]:
        try:
            async with self._places, self._start(prompt) as stream:
                return place, await stream.read()
        except InflightError as error:
            return place, error


async def _numbered(prompts: Prompts) -> AsyncIterator[tuple[int, Prompt]]:
    place = 0
    if isinstance(prompts, AsyncIterable):
        async for prompt in prompts:
            yield place, prompt
            place += 1
        return
    for prompt in prompts:
        yield place, prompt
        place += 1
