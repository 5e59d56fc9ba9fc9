"""A proxy before a server's HTTP port that holds streamed events back and lets several go at once, as real ones do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_EVENT = b"data:"
_END = b"\r\n0\r\n\r\n"


@contextmanager
def bunching_proxy(server: str, events: int) -> Iterator[str]:
    """The address of a proxy for `server` (HOST:PORT) that passes streamed events on so many at a time."""
    host, _, port = server.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    open_ones: list[socket.socket] = [listener]

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            backend = socket.create_connection((host, int(port)))
            open_ones.extend((client, backend))
            threading.Thread(target=_pass, args=(client, backend, 0), daemon=True).start()
            threading.Thread(target=_pass, args=(backend, client, events), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for one in open_ones:
            one.close()


def _pass(source: socket.socket, sink: socket.socket, events: int) -> None:
    held = b""
    try:
        while data := source.recv(65536):
            held += data
            if not 0 < held.count(_EVENT) < events or held.endswith(_END):
                sink.sendall(held)
                held = b""
        sink.sendall(held)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass
