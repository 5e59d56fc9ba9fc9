# Generated from _async/http_transport.py by scripts/unasync.py; do not edit.
"""The HTTP transport (KServe v2) for blocking code."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import httpcore2

from inflight_client._http import channel as channel
from inflight_client._http import responses as answers
from inflight_client._http.call_context import CallContext
from inflight_client._http.channel import HttpChannel
from inflight_client._http.infer_requests import BinaryRequest, GenerateRequest, HttpInferRequest
from inflight_client._http.messages import HttpResponse, model_path
from inflight_client._http.sync_network import DeadlineNetwork
from inflight_client.address import Address, Tls
from inflight_client.deadline import Deadline
from inflight_client.error_mapping import client_closed
from inflight_client.errors import InflightError
from inflight_client.results import Model
from inflight_client.transport import InferRequest, ModelMetadata, Responses, ServerMetadata

if TYPE_CHECKING:
    from inflight_client.metrics import Metrics
    from inflight_client.settings import ClientSettings


class HttpTransport:
    """A server's HTTP endpoint, for any number of threads.

    A child process that inherits it opens its own connections.
    """

    def __init__(self, address: Address, headers: Mapping[str, str], tls: Tls | None) -> None:
        self._channel = HttpChannel(address, headers, tls)
        self._closed = False
        self._start()
        _TRANSPORTS.add(self)

    def _start(self) -> None:
        self._network = DeadlineNetwork()
        self._pool = httpcore2.ConnectionPool(network_backend=self._network, **self._channel.options)
        self._calls: set[CallContext] = set()

    def live(self, deadline: Deadline) -> bool:
        return self._check_health("/v2/health/live", deadline)

    def ready(self, deadline: Deadline) -> bool:
        return self._check_health("/v2/health/ready", deadline)

    def model_ready(self, model: str, deadline: Deadline) -> bool:
        return self._check_health(f"{model_path(model)}/ready", deadline)

    def server(self, deadline: Deadline) -> ServerMetadata:
        return answers.server_metadata(self._get_json("/v2", deadline))

    def index(self, deadline: Deadline) -> list[Model]:
        return answers.repository_index(self._get_json("/v2/repository/index", deadline, b"{}"))

    def metadata(self, model: str, deadline: Deadline) -> ModelMetadata:
        return answers.model_metadata(self._get_json(model_path(model), deadline), model)

    def config(self, model: str, deadline: Deadline) -> Mapping[str, Any]:
        return answers.model_config(self._get_json(f"{model_path(model)}/config", deadline), model)

    def infer(self, request: InferRequest, whole: Deadline, first: Deadline) -> Responses:
        """The first `next` sends the request. The connection of an answer that was read to its end is reused."""
        sent = GenerateRequest(request) if request.task == "generate" else BinaryRequest(request)
        return HttpResponses(self, sent, whole, first)

    def page(self, deadline: Deadline) -> bytes:
        """Fetch the page at the address itself."""
        return self._get_body("", deadline)

    def close(self) -> None:
        """Close all connections; calls in flight end with `client_closed`."""
        self._closed = True
        for exchange in list(self._calls):
            exchange.cancel(client_closed())
        self._pool.close()

    def response_error(
        self, status: int, content_type: str, body: bytes, retry_after: float | None = None
    ) -> InflightError:
        """Return the error for a status other than 200; `retry_after` is what the headers ask for, in seconds."""
        return answers.status_error(status, content_type, body, self.where)

    def _check_health(self, path: str, deadline: Deadline) -> bool:
        status, kind, body = self._get(path, deadline)
        return answers.is_ready(status, self.response_error(status, kind, body))

    def _get_body(self, path: str, deadline: Deadline) -> bytes:
        status, kind, body = self._get(path, deadline)
        if status != 200:
            raise self.response_error(status, kind, body)
        return body

    def _get_json(self, path: str, deadline: Deadline, content: bytes | None = None) -> bytes:
        return answers.json_body(*self._get(path, deadline, content), self.where)

    def _get(self, path: str, deadline: Deadline, content: bytes | None = None) -> tuple[int, str, bytes]:
        exchange = CallContext(self.where, deadline)
        self.begin(exchange)
        try:
            with exchange.active():
                response = self._pool.handle_request(self._channel.request(path, exchange, content))
                try:
                    return response.status, channel.content_type(response), read_whole(response, self.where)
                finally:
                    response.close()
        finally:
            self.end(exchange)

    @property
    def where(self) -> str:
        return self._channel.where

    def begin(self, exchange: CallContext) -> None:
        """Register a call, so that `close` can end it. Raises InflightError `client_closed`."""
        self._calls.add(exchange)
        if self._closed:
            self._calls.discard(exchange)
            raise client_closed()

    def end(self, exchange: CallContext) -> None:
        exchange.release()
        self._calls.discard(exchange)

    def send(self, request: HttpInferRequest, exchange: CallContext) -> httpcore2.Response:
        """Send an inference request; return before its body is read."""
        sent = self._channel.request(request.path, exchange, request.body, request.headers)
        return self._pool.handle_request(sent)

    def after_fork_in_child(self) -> None:
        """Reset the transport in a forked child process; nothing is sent over the parent's connections."""
        for exchange in self._calls:
            exchange.detach()
        self._network.drop()
        self._start()


class HttpResponses:
    """The responses to one request. One thread at a time reads them; any thread may close them."""

    def __init__(self, transport: HttpTransport, request: HttpInferRequest, whole: Deadline, first: Deadline) -> None:
        self._transport = transport
        self._request = request
        self._whole = whole
        self._context = CallContext(transport.where, first.sooner(whole))
        self._lock = threading.RLock()
        self._events: deque[bytes] = deque()
        self._response: httpcore2.Response | None = None
        self._chunks: Iterator[bytes] | None = None
        self._id_matched = False
        self._keep_alive = False
        self._ended = False

    def __iter__(self) -> HttpResponses:
        return self

    def __next__(self) -> HttpResponse:
        with self._lock:
            try:
                response = self._next()
            except BaseException:
                self.finish()
                raise
            if response is None:
                self.finish()
                raise StopIteration
            return response

    def close(self) -> None:
        # Without the lock, since a reader holds it; cancelling wakes the reader.
        if not self._ended:
            self._context.cancel(_cancelled())
            with self._lock:
                self.finish()

    def finish(self) -> None:
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
                self._response.close()
        finally:
            self._transport.end(self._context)

    def _next(self) -> HttpResponse | None:
        if self._context.cancelled_with is not None:
            raise self._context.cancelled_with
        if self._ended:
            return None
        if self._chunks is None:
            self._chunks = self._send()
        while True:
            event = self._next_event(self._chunks)
            if event is None:
                return None
            self._context.left()  # buffered data may have arrived before the deadline and be read only now
            response = self._request.parse_event(event)
            if response is not None:
                self._context.deadline = self._whole
                self._id_matched = response.id == self._request.id != ""
                return response

    def _next_event(self, chunks: Iterator[bytes]) -> bytes | None:
        """Return the next event; None at the end of the answer."""
        if not self._events:
            with self._context.active():
                while not self._events:
                    chunk = next(chunks, None)
                    if chunk is not None:
                        self._events.extend(self._request.parser.feed(chunk))
                    elif last := self._request.parser.end(self._transport.where):
                        self._events.extend(last)
                    else:
                        self._keep_alive = self._id_matched
                        return None
        return self._events.popleft()

    def _send(self) -> Iterator[bytes]:
        """Send the request; return the chunks of the answer. Raises InflightError for an error status."""
        self._transport.begin(self._context)
        with self._context.active():
            self._response = response = self._transport.send(self._request, self._context)
            if response.status != 200:
                body, kind = read_whole(response, self._transport.where), channel.content_type(response)
                wait = channel.retry_after(response)
                raise self._transport.response_error(response.status, kind, body, wait)
        self._request.begin(response, self._transport.where)
        return response.iter_stream()


def read_whole(response: httpcore2.Response, where: str) -> bytes:
    """Read a response's body. Raises InflightError if it is too long."""
    body = bytearray()
    for chunk in response.iter_stream():
        body += chunk
        if len(body) > channel.MAX_BODY_BYTES:
            raise channel.body_too_long(where)
    return bytes(body)


def fetch_metrics(url: str, deadline: Deadline, server: ClientSettings | None = None) -> Metrics:
    """Fetch a metrics page, with the headers and certificates of `server` if the page belongs to that server.

    It does if it is on the same host, and not over plain HTTP if the server uses TLS.
    Raises InflightError.
    """
    from inflight_client.metrics import Metrics, page_address, page_credentials, page_text

    address = page_address(url)
    transport = HttpTransport(address, *page_credentials(address, server))
    try:
        return Metrics.parse(page_text(transport.page(deadline)))
    finally:
        transport.close()


def _cancelled() -> InflightError:
    return InflightError("the request was cancelled", "cancelled")


_TRANSPORTS: WeakSet[HttpTransport] = WeakSet()


def _after_fork_in_child() -> None:
    for transport in list(_TRANSPORTS):
        transport.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
