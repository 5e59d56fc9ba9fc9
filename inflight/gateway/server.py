"""Runs the gateway under uvicorn."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
from collections import Counter
from contextlib import suppress
from typing import Any

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from inflight.common.garbage_collection import freeze_loaded
from inflight.gateway.app import Gateway
from inflight.gateway.settings import SETTINGS_VARIABLE, GatewaySettings
from inflight.openai_api.errors import error_body

_MAX_HEADER_BYTES = 128 * 1024
_HEADER_BYTES = 32
"""What a name or value takes besides its bytes."""
_HEADER_SECONDS = 30.0
"""Within which the headers of a request must arrive, so that silent connections don't use up the descriptors."""
_IDLE_SECONDS = 90.0
"""Idle connections stay open longer than the pools of common clients keep them."""
_LINGER_SECONDS = 10.0
"""How long a client may go on sending the body of a request that was answered before its end."""
_LOOPBACK = ("127.", "::1", "::ffff:127.")


class Connections:
    """The connections of a process, at most `limit`, and `limit_of_address` from one address beyond this machine.

    A new connection takes the place of the one that has waited longest for a request.
    """

    def __init__(self, limit: int, limit_of_address: int) -> None:
        self._limit, self._limit_of_address = limit, limit_of_address
        self._open: Counter[str] = Counter()
        self._count = 0
        self._idle: dict[BoundedProtocol, None] = {}

    def admit(self, address: str) -> bool:
        """Count a connection; return whether it may stay."""
        self._open[address] += 1
        self._count += 1
        local = address.startswith(_LOOPBACK)
        if not local and self._open[address] > self._limit_of_address:
            return False
        if self._count > self._limit and self._idle:
            next(iter(self._idle)).close()
            return True
        return self._count <= self._limit

    def forget(self, connection: BoundedProtocol, address: str) -> None:
        self._open[address] -= 1
        self._count -= 1
        if not self._open[address]:
            del self._open[address]
        self._idle.pop(connection, None)

    def note(self, connection: BoundedProtocol, idle: bool) -> None:
        """Note whether a connection waits for a request, or for more of its headers."""
        self._idle.pop(connection, None)
        if idle:
            self._idle[connection] = None


class BoundedProtocol(HttpToolsProtocol):
    """Bounds the time and the size of what uvicorn's parser reads, and the number of connections.

    While no request is being worked on, a timer runs that closes the connection. No byte stops it, but whole headers.
    """

    connections_of_process = Connections(1, 1)
    """Replaced before the first connection."""
    _size = 0
    _address = ""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        if self.connections_of_process.admit(self._address):
            self._wait(_HEADER_SECONDS)
        else:
            self._refuse(503, "the gateway has too many connections; send the request again later", "overloaded")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.connections_of_process.forget(self, self._address)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._size = 0
        self._wait(_HEADER_SECONDS)
        super().on_message_begin()
        self.scope["state"]["abort"] = self.transport.abort

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        unread = self.cycle.more_body
        super().on_response_complete()
        if not self.pipeline:
            self._wait(_LINGER_SECONDS if unread else _IDLE_SECONDS)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self.cycle.response_complete:
            self._wait(_IDLE_SECONDS)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, f"{msg.rstrip('.')}; send HTTP/1.1", "invalid_request")

    def close(self) -> None:
        """Close the connection, also if its client does not read what was written."""
        self._stop_waiting()
        self.transport.close()
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def _refuse(self, status: int, message: str, code: str) -> None:
        body = orjson.dumps(error_body(message, code, status, None))
        head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self.transport.write(f"{head}\r\nconnection: close\r\n\r\n".encode() + body)
        self.close()

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, self.close)
        self.connections_of_process.note(self, idle=True)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.connections_of_process.note(self, idle=False)

    def on_url(self, url: bytes) -> None:
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(name, value)
        super().on_header(name, value)

    def _count(self, *parts: bytes) -> None:
        self._size += sum(len(part) + _HEADER_BYTES for part in parts)
        if self._size > _MAX_HEADER_BYTES:
            raise ValueError("the headers are too long")  # uvicorn answers 400


class GatewayServer(uvicorn.Server):
    """A uvicorn server that reports not ready while it drains."""

    def __init__(self, gateway: Gateway, sock: socket.socket) -> None:
        settings = gateway.settings
        super().__init__(
            uvicorn.Config(
                gateway,
                http=BoundedProtocol,
                loop="uvloop",
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=round(_IDLE_SECONDS),
                timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
                ssl_certfile=settings.tls_certificate,
                ssl_keyfile=settings.tls_key,
            )
        )
        self._gateway, self._socket = gateway, sock

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._gateway.drain()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        freeze_loaded()

    async def run_here(self) -> None:
        await self.serve(sockets=[self._socket])


def connection_limit(settings: GatewaySettings) -> int:
    """Return how many connections a process takes, after raising the limit of descriptors: half of these at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return max(1, min(settings.max_connections // settings.workers, soft // 2))


def run(settings: GatewaySettings, sock: socket.socket) -> None:
    import uvloop

    most = connection_limit(settings)
    BoundedProtocol.connections_of_process = Connections(most, max(1, most // 2))
    server = GatewayServer(Gateway(settings), sock)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.run_here())


if __name__ == "__main__":
    run(GatewaySettings.from_json(os.environ.pop(SETTINGS_VARIABLE)), socket.socket(fileno=int(sys.argv[1])))
