"""The HTTP transport (KServe v2) for asyncio."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import httpcore2

from inflight_client._http import channel as channel
from inflight_client._http import responses as answers
from inflight_client._http.async_network import AsyncDeadlineNetwork, AsyncDeadlineStream
from inflight_client._http.call_context import AsyncCallContext
from inflight_client._http.channel import HttpChannel
from inflight_client._http.infer_requests import BinaryRequest, GenerateRequest, HttpInferRequest
from inflight_client._http.messages import HttpResponse, model_path
from inflight_client.address import Address, Tls
from inflight_client.deadline import Deadline
from inflight_client.error_mapping import client_closed
from inflight_client.errors import InflightError
from inflight_client.results import Model
from inflight_client.transport import AsyncResponses, InferRequest, ModelMetadata, ServerMetadata

if TYPE_CHECKING:
    from inflight_client.metrics import Metrics
    from inflight_client.settings import ClientSettings


class AsyncHttpTransport:
    """A server's HTTP endpoint, for the tasks of one event loop: the one in which it is first used.

    A child process that inherits it opens its own connections, in its own loop.
    """

    def __init__(self, address: Address, headers: Mapping[str, str], tls: Tls | None) -> None:
        self._channel = HttpChannel(address, headers, tls)
        self._closed = False
        self._start()
        _TRANSPORTS.add(self)

    def _start(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None  # async only
        self._network = AsyncDeadlineNetwork()
        self._pool = httpcore2.AsyncConnectionPool(network_backend=self._network, **self._channel.options)
        self._calls: set[AsyncCallContext] = set()
        self._background_tasks: set[asyncio.Task[None]] = set()  # async only

    async def live(self, deadline: Deadline) -> bool:
        return await self._check_health("/v2/health/live", deadline)

    async def ready(self, deadline: Deadline) -> bool:
        return await self._check_health("/v2/health/ready", deadline)

    async def model_ready(self, model: str, deadline: Deadline) -> bool:
        return await self._check_health(f"{model_path(model)}/ready", deadline)

    async def server(self, deadline: Deadline) -> ServerMetadata:
        return answers.server_metadata(await self._get_json("/v2", deadline))

    async def index(self, deadline: Deadline) -> list[Model]:
        return answers.repository_index(await self._get_json("/v2/repository/index", deadline, b"{}"))

    async def metadata(self, model: str, deadline: Deadline) -> ModelMetadata:
        return answers.model_metadata(await self._get_json(model_path(model), deadline), model)

    async def config(self, model: str, deadline: Deadline) -> Mapping[str, Any]:
        return answers.model_config(await self._get_json(f"{model_path(model)}/config", deadline), model)

    def infer(self, request: InferRequest, whole: Deadline, first: Deadline) -> AsyncResponses:
        """The first `anext` sends the request. The connection of an answer that was read to its end is reused."""
        sent = GenerateRequest(request) if request.task == "generate" else BinaryRequest(request)
        return AsyncHttpResponses(self, sent, whole, first)

    async def page(self, deadline: Deadline) -> bytes:
        """Fetch the page at the address itself."""
        return await self._get_body("", deadline)

    async def close(self) -> None:
        """Close all connections; calls in flight end with `client_closed`."""
        self._closed = True
        if self._loop is None:  # async only
            return
        self._bind_loop()  # async only
        for exchange in list(self._calls):
            exchange.cancel(client_closed())
        if self._background_tasks:  # async only
            await asyncio.wait(self._background_tasks)
        await self._pool.aclose()
        await self._network.wait_closed()  # async only

    def response_error(
        self, status: int, content_type: str, body: bytes, retry_after: float | None = None
    ) -> InflightError:
        """Return the error for a status other than 200; `retry_after` is what the headers ask for, in seconds."""
        return answers.status_error(status, content_type, body, self.where)

    async def _check_health(self, path: str, deadline: Deadline) -> bool:
        status, kind, body = await self._get(path, deadline)
        return answers.is_ready(status, self.response_error(status, kind, body))

    async def _get_body(self, path: str, deadline: Deadline) -> bytes:
        status, kind, body = await self._get(path, deadline)
        if status != 200:
            raise self.response_error(status, kind, body)
        return body

    async def _get_json(self, path: str, deadline: Deadline, content: bytes | None = None) -> bytes:
        return answers.json_body(*await self._get(path, deadline, content), self.where)

    async def _get(self, path: str, deadline: Deadline, content: bytes | None = None) -> tuple[int, str, bytes]:
        exchange = AsyncCallContext(self.where, deadline)
        self.begin(exchange)
        try:
            async with exchange.active_within_deadline():
                response = await self._pool.handle_async_request(self._channel.request(path, exchange, content))
                try:
                    return response.status, channel.content_type(response), await read_whole(response, self.where)
                finally:
                    await response.aclose()
        finally:
            self.end(exchange)

    @property
    def where(self) -> str:
        return self._channel.where

    def begin(self, exchange: AsyncCallContext) -> None:
        """Register a call, so that `close` can end it. Raises InflightError `client_closed`."""
        if not self._closed:  # async only
            self._bind_loop()
        self._calls.add(exchange)
        if self._closed:
            self._calls.discard(exchange)
            raise client_closed()

    def end(self, exchange: AsyncCallContext) -> None:
        exchange.release()
        self._calls.discard(exchange)

    async def send(self, request: HttpInferRequest, exchange: AsyncCallContext) -> httpcore2.Response:
        """Send an inference request; return before its body is read."""
        sent = self._channel.request(request.path, exchange, request.body, request.headers)
        return await self._pool.handle_async_request(sent)

    def finish_in_background(self, responses: AsyncHttpResponses) -> None:  # async only
        """Finish an abandoned call in a task; `close` waits for it."""
        if self._loop is None or not self._loop.is_running():
            return
        task = self._loop.create_task(responses.finish())
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    def _bind_loop(self) -> None:  # async only
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise InflightError(
                "the client belongs to the event loop in which it was first used; make one in each", "client_closed"
            )

    def after_fork_in_child(self) -> None:
        """Reset the transport in a forked child process; nothing is sent over the parent's connections."""
        for exchange in self._calls:
            exchange.detach()
        self._network.drop()
        self._start()


class AsyncHttpResponses:
    """The responses to one request. One task at a time reads them; any of the loop's may close them."""

    def __init__(
        self, transport: AsyncHttpTransport, request: HttpInferRequest, whole: Deadline, first: Deadline
    ) -> None:
        self._transport = transport
        self._request = request
        self._whole = whole
        self._context = AsyncCallContext(transport.where, first.sooner(whole))
        self._lock = asyncio.Lock()
        self._events: deque[bytes] = deque()
        self._response: httpcore2.Response | None = None
        self._chunks: AsyncGenerator[bytes] | None = None
        self._id_matched = False
        self._keep_alive = False
        self._ended = False

    def __aiter__(self) -> AsyncHttpResponses:
        return self

    async def __anext__(self) -> HttpResponse:
        async with self._lock:
            try:
                response = await self._next()
            except BaseException:
                await self.finish()
                raise
            if response is None:
                await self.finish()
                raise StopAsyncIteration
            return response

    def cancel(self) -> None:  # async only
        if not self._ended:
            self._context.cancel(_cancelled())
            if not self._lock.locked():
                self._transport.finish_in_background(self)

    async def close(self) -> None:
        # Without the lock, since a reader holds it; cancelling wakes the reader.
        if not self._ended:
            self._context.cancel(_cancelled())
            async with self._lock:
                await self.finish()

    async def finish(self) -> None:
        """Return the connection to the pool, which keeps it only after a whole answer.

        Otherwise the connection is closed, so that the server detects the disconnect. It is also closed if the server
        does not return the request's id, since leftover data could be mistaken for the next call's answer.
        """
        if self._ended:
            return
        self._ended = True
        if not self._keep_alive:
            self._context.discard()
        try:
            if self._response is not None and not self._context.detached:
                if self._chunks is not None:  # async only
                    await self._chunks.aclose()
                await self._response.aclose()
                stream = self._response.extensions["network_stream"]  # async only
                if not self._keep_alive and isinstance(stream, AsyncDeadlineStream):  # async only
                    await stream.wait_closed()
        finally:
            self._transport.end(self._context)

    async def _next(self) -> HttpResponse | None:
        if self._context.cancelled_with is not None:
            raise self._context.cancelled_with
        if self._ended:
            return None
        if self._chunks is None:
            self._chunks = await self._send()
        while True:
            event = await self._next_event(self._chunks)
            if event is None:
                return None
            self._context.left()  # buffered data may have arrived before the deadline and be read only now
            response = self._request.parse_event(event)
            if response is not None:
                self._context.deadline = self._whole
                self._id_matched = response.id == self._request.id != ""
                return response

    async def _next_event(self, chunks: AsyncGenerator[bytes]) -> bytes | None:
        """Return the next event; None at the end of the answer."""
        if not self._events:
            async with self._context.active_within_deadline():
                while not self._events:
                    chunk = await anext(chunks, None)
                    if chunk is not None:
                        self._events.extend(self._request.parser.feed(chunk))
                    elif last := self._request.parser.end(self._transport.where):
                        self._events.extend(last)
                    else:
                        self._keep_alive = self._id_matched
                        return None
        return self._events.popleft()

    async def _send(self) -> AsyncGenerator[bytes]:
        """Send the request; return the chunks of the answer. Raises InflightError for an error status."""
        self._transport.begin(self._context)
        async with self._context.active_within_deadline():
            self._response = response = await self._transport.send(self._request, self._context)
            if response.status != 200:
                body, kind = await read_whole(response, self._transport.where), channel.content_type(response)
                wait = channel.retry_after(response)
                raise self._transport.response_error(response.status, kind, body, wait)
        self._request.begin(response, self._transport.where)
        return response.aiter_stream()


async def read_whole(response: httpcore2.Response, where: str) -> bytes:
    """Read a response's body. Raises InflightError if it is too long."""
    body = bytearray()
    async for chunk in response.aiter_stream():
        body += chunk
        if len(body) > channel.MAX_BODY_BYTES:
            raise channel.body_too_long(where)
    return bytes(body)


async def async_fetch_metrics(url: str, deadline: Deadline, server: ClientSettings | None = None) -> Metrics:
    """Fetch a metrics page, with the headers and certificates of `server` if the page belongs to that server.

    It does if it is on the same host, and not over plain HTTP if the server uses TLS.
    Raises InflightError.
    """
    from inflight_client.metrics import Metrics, page_address, page_credentials, page_text

    address = page_address(url)
    transport = AsyncHttpTransport(address, *page_credentials(address, server))
    try:
        return Metrics.parse(page_text(await transport.page(deadline)))
    finally:
        await transport.close()


def _cancelled() -> InflightError:
    return InflightError("the request was cancelled", "cancelled")


_TRANSPORTS: WeakSet[AsyncHttpTransport] = WeakSet()


def _after_fork_in_child() -> None:
    for transport in list(_TRANSPORTS):
        transport.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
