"""Runs the gateway under uvicorn."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from inflight.gateway.app import Gateway
from inflight.gateway.settings import GatewaySettings

_MAX_HEADER_BYTES = 128 * 1024
_HEADER_BYTES = 32
"""What a name or value takes besides its bytes."""
_HEADER_SECONDS = 30.0
"""Within which the headers of a request must arrive, so that silent connections don't use up the descriptors."""
_IDLE_SECONDS = 90
"""Idle connections stay open longer than the pools of common clients keep them."""


class BoundedProtocol(HttpToolsProtocol):
    """Refuses requests whose headers or address are too long, or take too long; uvicorn's parser has no such bounds."""

    _size = 0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._size = 0
        self._expect_headers()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def _expect_headers(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(_HEADER_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

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
                timeout_keep_alive=_IDLE_SECONDS,
                timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
                ssl_certfile=settings.tls_certificate,
                ssl_keyfile=settings.tls_key,
            )
        )
        self._gateway, self._socket = gateway, sock

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._gateway.draining = True
        super().handle_exit(sig, frame)

    async def run_here(self) -> None:
        await self.serve(sockets=[self._socket])


def run(settings: GatewaySettings, sock: socket.socket) -> None:
    import uvloop

    server = GatewayServer(Gateway(settings), sock)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.run_here())


if __name__ == "__main__":
    run(GatewaySettings.from_json(sys.argv[2]), socket.socket(fileno=int(sys.argv[1])))
