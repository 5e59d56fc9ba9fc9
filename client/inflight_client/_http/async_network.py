"""Connections over asyncio's transports, which can be aborted without waiting."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import ssl
from collections.abc import Iterable
from typing import Any, cast

import httpcore2

from inflight_client._http.call_context import CONNECT_TIMEOUT, CURRENT
from inflight_client._http.sync_network import connection_lost_error, is_readable, name_error, set_options, tls_error
from inflight_client.error_mapping import connection_closed

_READ_BUFFER_LIMIT = 256 * 1024
"""Unread bytes at which reading pauses, so that the peer waits."""


def _connect_options(loop: asyncio.AbstractEventLoop, host: str) -> dict[str, Any]:
    """Return the Happy Eyeballs option: try the next address after a quarter of a second; uvloop does not support it.

    Not for IP addresses: there is no other to try, and asyncio leaks the socket if the attempt is cancelled at its end.
    """
    try:
        ipaddress.ip_address(host)
        return {}
    except ValueError:
        return {"happy_eyeballs_delay": 0.25} if isinstance(loop, asyncio.BaseEventLoop) else {}


class AsyncDeadlineNetwork(httpcore2.AsyncNetworkBackend):
    """Opens connections for httpcore2's pool and keeps track of them. Callers enforce the deadlines."""

    def __init__(self) -> None:
        self._open: set[AsyncDeadlineStream] = set()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        exchange = CURRENT.get()
        loop = asyncio.get_running_loop()
        stream = AsyncDeadlineStream(self._open)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await loop.create_connection(lambda: stream, host, port, **_connect_options(loop, host))
        except (OSError, UnicodeError) as error:
            raise name_error(error, exchange) from None
        set_options(stream.get_extra_info("socket"))
        exchange.attach(stream)
        return stream

    async def wait_closed(self) -> None:
        """Wait until the sockets of all closed connections are closed."""
        for stream in list(self._open):
            await stream.wait_closed()
        await asyncio.sleep(0)  # the loop closes the sockets aborted last in its next iteration

    def drop(self) -> None:
        """Close this process's copies of its parent's sockets: nothing is sent, the parent's stay open."""
        for stream in list(self._open):
            stream.drop()
        self._open.clear()


class AsyncDeadlineStream(asyncio.Protocol, httpcore2.AsyncNetworkStream):
    """A connection, read by one task at a time."""

    def __init__(self, open_streams: set[AsyncDeadlineStream]) -> None:
        self._open = open_streams
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._eof = False
        self._error: Exception | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        """Readers that wait for bytes, and writers that wait for room."""
        self._paused = False
        self._loop = asyncio.get_running_loop()
        self._lost = self._loop.create_future()

    # Callbacks of asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports behave alike but have another class
        self._open.add(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > _READ_BUFFER_LIMIT and self._transport is not None:
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._eof = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._eof = True
        self._error = exc
        self._open.discard(self)
        self._wake()
        if not self._lost.done():
            self._lost.set_result(None)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._wake()

    # Methods for httpcore2

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        exchange = CURRENT.get()
        exchange.attach(self)
        while not self._received and not self._eof:
            await self._wait()
        if self._received:
            data = bytes(self._received[:max_bytes])
            del self._received[:max_bytes]
            exchange.record_data(data)
            if not self._eof and self._transport is not None:
                self._transport.resume_reading()
            return data
        exchange.peer_closed = True
        if isinstance(self._error, OSError):
            raise connection_lost_error(self._error, httpcore2.ReadError, exchange)
        return b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        exchange = CURRENT.get()
        exchange.attach(self)
        if self._transport is None or self._eof:
            exchange.peer_closed = True
            raise httpcore2.WriteError("the connection was closed")
        self._transport.write(buffer)
        while self._paused and not self._eof:
            await self._wait()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        exchange = CURRENT.get()
        assert self._transport is not None
        try:
            self._transport = await self._loop.start_tls(
                self._transport,
                self,
                ssl_context,
                server_hostname=server_hostname,
                ssl_handshake_timeout=CONNECT_TIMEOUT,
            )
        except BaseException as error:
            self.abort()
            self.connection_lost(None)  # asyncio does not call it before the handshake is done
            if isinstance(error, OSError | ValueError):
                raise tls_error(error, exchange) from None
            raise
        if self._transport is None:  # the peer closed the connection at once
            raise connection_closed(exchange.where, "TLS")
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return bool(self._received) or self._eof or self._descriptor_is_readable()
        return None if self._transport is None else self._transport.get_extra_info(info)

    async def aclose(self) -> None:
        self.abort()

    # Methods for the client

    def abort(self) -> None:
        """Abort the connection without waiting; the socket is closed within the loop's next iteration."""
        self._eof = True
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until an aborted connection's socket is closed."""
        if self._transport is not None and self._transport.is_closing():
            await asyncio.wait([self._lost], timeout=1.0)

    def drop(self) -> None:
        """In a child process: replace the inherited socket with /dev/null.

        asyncio's objects must not close it: they would also change the selector, which the parent shares.
        """
        descriptor = self._descriptor()
        if descriptor >= 0:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, descriptor)
            os.close(null)

    async def _wait(self) -> None:
        waiting = self._loop.create_future()
        self._waiters.add(waiting)
        try:
            await waiting
        finally:
            self._waiters.discard(waiting)

    def _wake(self) -> None:
        for waiting in self._waiters:
            if not waiting.done():
                waiting.set_result(None)

    def _descriptor(self) -> int:
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    def _descriptor_is_readable(self) -> bool:
        return is_readable(self._descriptor())
