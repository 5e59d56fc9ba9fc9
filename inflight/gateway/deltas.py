"""The deltas of the streams of one request, in the order in which they arrive."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from inflight_client import AsyncStream
from inflight_client.results import Delta


class Deltas(Protocol):
    """Iterates over pairs of a stream's index and a delta. The first error of a stream ends all."""

    async def wait(self, seconds: float) -> bool:
        """Wait until there is a next pair, or the end; return whether it came in time."""

    def drop(self, index: int) -> None:
        """Expect no more of a stream."""

    async def close(self) -> None:
        """Stop reading."""

    def __aiter__(self) -> Deltas: ...

    async def __anext__(self) -> tuple[int, Delta]: ...


def merged(streams: Sequence[AsyncStream]) -> Deltas:
    return _One(streams[0]) if len(streams) == 1 else _Many(streams)


class _One:
    """A single stream, read without a task of its own: that would cost another wake-up for each token."""

    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream
        self._next: asyncio.Task[Delta] | None = None
        self._dropped = False

    async def wait(self, seconds: float) -> bool:
        if self._next is None:
            self._next = asyncio.create_task(self._read())
        return bool((await asyncio.wait((self._next,), timeout=seconds))[0])

    def drop(self, index: int) -> None:
        self._dropped = True

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)

    def __aiter__(self) -> _One:
        return self

    async def __anext__(self) -> tuple[int, Delta]:
        if self._dropped:
            raise StopAsyncIteration
        if self._next is not None:
            task, self._next = self._next, None
            return 0, await task
        return 0, await self._stream.__anext__()

    async def _read(self) -> Delta:
        return await self._stream.__anext__()


class _Many:
    def __init__(self, streams: Sequence[AsyncStream]) -> None:
        self._pending: deque[tuple[int, Delta] | Exception] = deque()
        self._arrived = asyncio.Event()
        self._open = len(streams)
        self._tasks = [asyncio.create_task(self._read(index, stream)) for index, stream in enumerate(streams)]

    async def wait(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._next_ready(), seconds)
        except TimeoutError:
            return False
        return True

    def drop(self, index: int) -> None:
        self._tasks[index].cancel()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def __aiter__(self) -> _Many:
        return self

    async def __anext__(self) -> tuple[int, Delta]:
        await self._next_ready()
        if not self._pending:
            raise StopAsyncIteration
        pending = self._pending.popleft()
        if isinstance(pending, Exception):
            raise pending
        return pending

    async def _next_ready(self) -> None:
        while not self._pending and self._open:
            self._arrived.clear()
            await self._arrived.wait()

    async def _read(self, index: int, stream: AsyncStream) -> None:
        try:
            async for delta in stream:
                self._pending.append((index, delta))
                self._arrived.set()
        except Exception as error:
            self._pending.append(error)
        finally:
            self._open -= 1
            self._arrived.set()
