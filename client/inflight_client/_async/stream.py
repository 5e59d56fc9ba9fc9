"""A streamed answer, for asyncio."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

from inflight_client._async.connection import AsyncConnection
from inflight_client.call import Call
from inflight_client.deadline import Deadline
from inflight_client.deployments.answer import AnswerDecoder
from inflight_client.errors import InflightError
from inflight_client.results import Delta, Generation
from inflight_client.stream_base import StreamBase
from inflight_client.transport import AsyncResponses


class AsyncStream(StreamBase):
    """An asynchronous iterator over the deltas of one answer. The first iteration sends the request.

    Leaving it early cancels the request on the server: by `close()`, at the end of its `async with` block,
    by cancelling the task that reads it, or when it is garbage-collected. One task at a time reads it;
    another task may close it.
    """

    def __init__(self, call: Call, connection: AsyncConnection) -> None:
        super().__init__(call)
        self._connection = connection
        self._responses: AsyncResponses | None = None
        self._closed = asyncio.Event()
        self._sent_at = 0.0
        self._reading = False
        self._first_delta_task: asyncio.Task[Delta | None] | None = None  # async only

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Delta:
        if self._closed.is_set():
            raise StopAsyncIteration
        if self._reading:
            raise RuntimeError("another task reads this stream already")
        self._reading = True
        try:
            # sync: delta = self._first_delta() if self._answer is None else self._next_delta(self._answer)
            delta = await self._run_first_delta() if self._answer is None else await self._next_delta(self._answer)
        except GeneratorExit:  # async only: the loop has ended, so awaiting is impossible
            self._cancel_responses()
            raise
        except BaseException:
            await self.close()
            raise
        finally:
            self._reading = False
        if delta is None:
            await self.close()
            raise StopAsyncIteration
        self._transcript.add(delta)
        return delta

    async def read(self) -> Generation:
        """Read to the end and return the whole answer. Raises InflightError; `cancelled` if the stream was closed."""
        async for _ in self:
            pass
        if (generation := self.generation) is None:
            raise InflightError("the answer was cancelled before its end", "cancelled")
        return generation

    async def close(self) -> None:
        """Cancel the rest of the answer and wait until the call's resources are released. May be called twice."""
        self._closed.set()
        if self._first_delta_task is not None:  # async only
            self._first_delta_task.cancel()
            await asyncio.wait([self._first_delta_task])
        left = self._responses is not None and not self._transcript.ended
        await self._close_responses()
        if left:
            await self._connection.abandon(self._call, self._sent_at)

    aclose = close  # async only (as `contextlib.aclosing` calls it)

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        # sync: self.close()
        self._cancel_responses()

    def _cancel_responses(self) -> None:  # async only
        responses, self._responses = self._responses, None
        if responses is not None:
            responses.cancel()

    async def _run_first_delta(self) -> Delta | None:  # async only
        """Return the first delta; it runs in a separate task that `close` can cancel."""
        self._first_delta_task = asyncio.ensure_future(self._first_delta())
        try:
            return await self._first_delta_task
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed.is_set() and not (task is not None and task.cancelling()):
                return None
            raise
        finally:
            self._first_delta_task = None

    async def _first_delta(self) -> Delta | None:
        """Return the first delta; a call is retried only up to this point."""
        self._transcript.start()
        whole = Deadline(self._call.timeout)
        first = Deadline(self._call.first_token_timeout, "the first token")
        # sync: for attempt in self._connection.retries.attempts(whole.sooner(first), self._closed):
        async for attempt in self._connection.retries.async_attempts(whole.sooner(first)):
            with attempt:
                try:
                    return await self._attempt(whole, first)
                except InflightError as error:
                    await self._close_responses()
                    self._connection.invalidate_after(error)
                    raise
        raise AssertionError("the attempts ended with neither an answer nor an error")

    async def _attempt(self, whole: Deadline, first: Deadline) -> Delta | None:
        """Send the request once and wait for its first delta."""
        self._transcript.attempts += 1
        answer, self._responses = await self._connection.send(self._call, whole, first)
        self._sent_at = time.monotonic()
        if self._closed.is_set():  # by another task, meanwhile
            raise InflightError("the answer was cancelled before its end", "cancelled")
        delta = await self._next_delta(answer)
        self._answer = answer
        return delta

    async def _next_delta(self, answer: AnswerDecoder) -> Delta | None:
        """Return the next delta; None after the last one."""
        responses = self._responses
        if responses is None:  # closed by another task
            return None
        async for response in responses:
            delta = answer.add_response(response)
            if answer.done:
                await self._close_responses()
            return delta
        return answer.finish()

    async def _close_responses(self) -> None:
        responses, self._responses = self._responses, None
        if responses is not None:
            await responses.close()
