"""The context of one HTTP call: its deadline, its connection and its state."""

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
"""Seconds to connect, so that a call without a deadline does not wait forever for a silent host."""

_LIBRARY_ERRORS = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.TimeoutException,
    httpcore2.UnsupportedProtocol,
)


_HTTP2 = b"\x04\0\0\0\0\0"
"""The bytes after the length in an HTTP/2 server's first frame (RFC 9113, 3.4 and 6.5): SETTINGS."""
_TLS = b"\x15\x03"
"""The first bytes of a TLS alert (RFC 8446, 5.1), the reply to a plain-text request."""


class Abortable(Protocol):
    """A connection that can be aborted while another thread or task reads from it."""

    def abort(self) -> None: ...


class CallContext:
    """The call that a connection currently works for, shared with the network backend below the HTTP library.

    The library gives each read the same timeout, so a peer that sends a byte now and then could block a call
    indefinitely. Its timeouts are therefore not used: while a thread or task works for a call, CURRENT holds the call's
    context, and every read, write and connect uses the time left until its deadline. (It is a context variable, since
    all calls share one pool, and each thread and task has its own value.)
    """

    def __init__(self, where: str, deadline: Deadline = NEVER) -> None:
        self.where = where
        self.deadline = deadline
        self.peer_closed = False
        """The peer closed the connection."""
        self._first_bytes = b""
        """The first bytes received."""
        self._stream: Abortable | None = None
        self.cancelled_with: InflightError | None = None

    def attach(self, stream: Abortable) -> None:
        """Set the call's connection. Raises InflightError if the call was cancelled meanwhile."""
        self._stream = stream
        if self.cancelled_with is not None:
            raise self.cancelled_with

    def record_data(self, data: bytes) -> None:
        """Remember the first bytes received."""
        if not self._first_bytes:
            self._first_bytes = data[:9]

    def cancel(self, error: InflightError) -> None:
        """Cancel the call, from any thread: its reader gets the error."""
        if self.cancelled_with is None:
            self.cancelled_with = error
        if (stream := self._stream) is not None:
            stream.abort()

    def detach(self) -> None:
        """In a child process: give up the call, which belongs to the parent."""
        self.cancelled_with = InflightError(
            "the answer belongs to another process; request one in each", "client_forked"
        )
        self._stream = None

    @property
    def detached(self) -> bool:
        return self.cancelled_with is not None and self.cancelled_with.code == "client_forked"

    def discard(self) -> None:
        """Abort the call's connection, so that it is not reused."""
        if self._stream is not None:
            self._stream.abort()

    def release(self) -> None:
        """Release the connection for other calls."""
        self._stream = None

    def left(self) -> float | None:
        """Return the seconds left. Raises InflightError after the deadline or a cancellation."""
        if self.cancelled_with is not None:
            raise self.cancelled_with
        left = self.deadline.left()
        if left == 0.0:
            raise self.deadline.error()
        return left

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the current call of the thread or task, and map errors to InflightError."""
        token = CURRENT.set(self)
        try:
            yield
        except _LIBRARY_ERRORS as error:
            raise self._map_error(error) from None
        except InflightError as error:
            raise self.cancelled_with or error from None
        finally:
            CURRENT.reset(token)

    def _map_error(self, error: Exception) -> InflightError:
        if self.cancelled_with is not None:
            return self.cancelled_with
        words = str(error) or type(error).__name__
        if isinstance(error, httpcore2.TimeoutException):  # no connection of the pool became free
            return self.deadline.error()
        if isinstance(error, httpcore2.LocalProtocolError):
            return InflightError(f"the request can't be sent as HTTP: {words}", "invalid_parameter")
        if isinstance(error, httpcore2.ProxyError):
            return InflightError(f"the proxy in front of {self.where} refuses: {words}", "server_unreachable")
        if self._first_bytes[3:] == _HTTP2:
            return not_triton(self.where, "it speaks only HTTP/2, like a gRPC port; use the HTTP port")
        if self._first_bytes[:2] == _TLS:
            return InflightError(f"{self.where} expects TLS; write https://", "permission_denied")
        if isinstance(error, httpcore2.RemoteProtocolError) and not self.peer_closed:
            return InflightError(
                f"the response from {self.where} is not HTTP ({words}); send the request again", "answer_damaged"
            )
        return connection_lost(self.where, words)


class AsyncCallContext(CallContext):
    """The context of an asyncio call; its deadline applies within `active_within_deadline`."""

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
