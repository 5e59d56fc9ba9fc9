"""One question over HTTP and its answer: by when, over which connection, and how that went."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Protocol

import httpcore2

from inflight_client.deadline import NEVER, Deadline
from inflight_client.error_mapping import connection_lost, not_triton
from inflight_client.errors import InflightError

CONNECT_TIMEOUT = 20.0
"""A connection that isn't made by then is not made: a call without a deadline would else wait for a black hole."""

_LIBRARY_ERRORS = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.TimeoutException,
    httpcore2.UnsupportedProtocol,
)


_HTTP2 = b"\x04\0\0\0\0\0"
"""Behind its length, how the frame goes on that an HTTP/2 server sends first (RFC 9113, 3.4 and 6.5): SETTINGS."""
_TLS = b"\x15\x03"
"""How TLS's alerts begin (RFC 8446, 5.1), which answer what is no TLS."""


class Abortable(Protocol):
    """A connection that can be broken from outside, while somebody waits for what comes over it."""

    def abort(self) -> None: ...


class CallContext:
    """What the connections below the library are told of the call that they work for, and tell of themselves.

    The library hands each read the same number of seconds, so that a peer who sends a byte now and then could hold a
    call for ever. So its own timeouts are not used: while a thread or task works for a call, CURRENT holds the call's
    exchange, and every read, write and connect takes what is left of its deadline. (A context variable, since all
    calls share one pool, and each thread and each task has values of its own.)
    """

    def __init__(self, where: str, deadline: Deadline = NEVER) -> None:
        self.where = where
        self.deadline = deadline
        self.peer_closed = False
        """The peer closed the connection."""
        self._first_bytes = b""
        """The first bytes of what came."""
        self._stream: Abortable | None = None
        self._cancelled_with: InflightError | None = None

    def attach(self, stream: Abortable) -> None:
        """The connection that works for this call. Raises InflightError where it was given up meanwhile."""
        self._stream = stream
        if self._cancelled_with is not None:
            raise self._cancelled_with

    def record_data(self, data: bytes) -> None:
        """What came over the connection."""
        if not self._first_bytes:
            self._first_bytes = data[:9]

    def cancel(self, error: InflightError) -> None:
        """End it, from whatever thread: whoever waits for it gets the error."""
        if self._cancelled_with is None:
            self._cancelled_with = error
        if (stream := self._stream) is not None:
            stream.abort()

    def detach(self) -> None:
        """In a child process: it stays the parent's."""
        self._cancelled_with = InflightError("the answer is another process's; ask for one in each", "client_forked")
        self._stream = None

    @property
    def detached(self) -> bool:
        return self._cancelled_with is not None and self._cancelled_with.code == "client_forked"

    def discard(self) -> None:
        """Break its connection, so that nothing else is asked over it."""
        if self._stream is not None:
            self._stream.abort()

    def release(self) -> None:
        """The connection works for others now."""
        self._stream = None

    @property
    def cancelled_with(self) -> InflightError | None:
        return self._cancelled_with

    def left(self) -> float | None:
        """Seconds left. Raises InflightError once there are none."""
        if self._cancelled_with is not None:
            raise self._cancelled_with
        left = self.deadline.left()
        if left == 0.0:
            raise self.deadline.error()
        return left

    @contextmanager
    def active(self) -> Iterator[None]:
        """While this thread or task works for it; what goes wrong is raised as InflightError."""
        token = CURRENT.set(self)
        try:
            yield
        except _LIBRARY_ERRORS as error:
            raise self._map_error(error) from None
        except InflightError as error:
            raise self._cancelled_with or error from None
        finally:
            CURRENT.reset(token)

    def _map_error(self, error: Exception) -> InflightError:
        if self._cancelled_with is not None:
            return self._cancelled_with
        words = str(error) or type(error).__name__
        if isinstance(error, httpcore2.TimeoutException):  # no connection of the pool came free
            return self.deadline.error()
        if isinstance(error, httpcore2.LocalProtocolError):
            return InflightError(f"the request can't be sent as HTTP: {words}", "invalid_parameter")
        if isinstance(error, httpcore2.ProxyError):
            return InflightError(f"the proxy on the way to {self.where} refuses: {words}", "server_unreachable")
        if self._first_bytes[3:] == _HTTP2:
            return not_triton(self.where, "it speaks HTTP/2 alone, as the gRPC port does; HTTP has a port of its own")
        if self._first_bytes[:2] == _TLS:
            return InflightError(f"what answers at {self.where} wants TLS; write https://", "permission_denied")
        if isinstance(error, httpcore2.RemoteProtocolError) and not self.peer_closed:
            return InflightError(
                f"what came from {self.where} is no HTTP ({words}); send the request again", "answer_damaged"
            )
        return connection_lost(self.where, words)


class AsyncCallContext(CallContext):
    """An exchange that tasks work for: its deadline holds for all that happens within `in_time`."""

    _timer: asyncio.Timeout | None = None

    @asynccontextmanager
    async def active_within_deadline(self) -> AsyncIterator[None]:
        left = self.left()
        try:
            with self.active():
                async with asyncio.timeout(left) as self._timer:
                    yield
        except TimeoutError:
            raise self.cancelled_with or self.deadline.error() from None
        finally:
            self._timer = None

    def cancel(self, error: InflightError) -> None:
        super().cancel(error)
        if self._timer is not None and not self._timer.expired():
            self._timer.reschedule(0.0)


CURRENT: ContextVar[CallContext] = ContextVar("CURRENT")
