"""Calls of encoders for asyncio: the requests of a call, sent several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Sized
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from inflight_client._async.concurrent_calls import AsyncCallRunner
from inflight_client._async.connection import AsyncConnection
from inflight_client.deadline import NEVER, Deadline
from inflight_client.encoder_call import EncoderOptions, EncoderRequest
from inflight_client.encoder_texts import CONCURRENCY, MAX_TEXTS, Splitter, join
from inflight_client.errors import InflightError
from inflight_client.result_order import ResultOrder, validate_source
from inflight_client.transport import AsyncResponses

if TYPE_CHECKING:
    from inflight_client.audio.clip_call import ClipRequest


async def async_encode(connection: AsyncConnection, options: EncoderOptions, texts: Any) -> Any:
    """Return the result for any number of texts.

    Leaving it cancels its requests on the server. Triton's HTTP endpoint can't cancel; there they end at the deadline.
    """
    texts = (texts,) if isinstance(texts, str) else texts
    expected = "a text, or an iterable of texts"
    # sync: texts = validate_source(options.texts_name, texts, expected)
    texts = validate_source(options.texts_name, texts, expected, asynchronous=True)
    deadline = Deadline(options.timeout)
    splitter = Splitter(options)
    # sync: requests: Any = splitter.requests(texts)
    requests: Any = splitter.async_requests(texts) if isinstance(texts, AsyncIterable) else splitter.requests(texts)
    done: list[EncoderRequest] = []
    if isinstance(texts, Sized) and len(texts) <= MAX_TEXTS[options.task]:
        requests = list(requests)
        if len(requests) == 1:
            call = AsyncEncoderCall(requests.pop(), connection, deadline)
            try:
                done.append(await call.read())
            finally:
                await call.close()
    if requests != []:
        runner = AsyncCallRunner(lambda request: AsyncEncoderCall(request, connection, deadline), CONCURRENCY)
        order = ResultOrder(as_completed=True, return_errors=False)
        async with aclosing(runner.outcomes(requests, order)) as outcomes:
            async for _, request in outcomes:
                done.append(request)
    return join(splitter, options, done)


class AsyncEncoderCall:
    """One request of a call, with its retries. Closing it cancels it."""

    def __init__(self, request: EncoderRequest | ClipRequest, connection: AsyncConnection, deadline: Deadline) -> None:
        self._request = request
        self._connection = connection
        self._deadline = deadline
        self._responses: AsyncResponses | None = None
        self._closed = asyncio.Event()

    async def read(self) -> Any:
        """Send the request; return it with its answers and errors. Raises InflightError."""
        try:
            # sync: for attempt in self._connection.retries.attempts(self._deadline, self._closed):
            async for attempt in self._connection.retries.async_attempts(self._deadline):
                with attempt:
                    await self._attempt()
        except InflightError as error:
            self._request.fail(await self._connection.explain_encoder_error(error, self._request.options))
        self._request.raise_first()
        return self._request

    async def close(self) -> None:
        self._closed.set()
        responses, self._responses = self._responses, None
        if responses is not None:
            await responses.close()

    async def _attempt(self) -> None:
        """Send the texts that have no answer yet once."""
        built = self._request.build(self._deadline.left())
        self._responses = responses = self._connection.transport.infer(built, self._deadline, NEVER)
        try:
            if self._closed.is_set():  # by another task, meanwhile
                raise InflightError("the texts were given up before they were sent", "cancelled")
            async for response in responses:
                self._request.add(response)
        finally:
            await responses.close()
        self._request.check()
