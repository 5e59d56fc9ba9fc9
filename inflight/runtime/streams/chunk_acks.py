"""How postprocessing tells the engine's model which chunks have reached it.

Both models run in processes of the same server, so the engine's model listens on a socket named after that server
(`local_socket`), and postprocessing sends it the keys of the chunks of each execution: numbers that only the two know.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence
from functools import partial

from inflight.runtime.background_loop import BackgroundLoop
from inflight.runtime.streams.local_socket import SocketListener, connect, server_id

_KEY = struct.Struct("<Q")


def ack_socket_name(engine_model: str) -> str:
    """Where that model listens."""
    return f"inflight-chunk-acks-{server_id()}-{engine_model}"


class ChunkAckListener:
    """Takes the receipts for one engine's model and hands each to `on_ack`, in order, in a thread of its own.

    What `on_ack` raises is told to `report`; the next receipt is handed on all the same.
    """

    def __init__(
        self, engine_model: str, on_ack: Callable[[Sequence[int]], None], report: Callable[[str], None]
    ) -> None:
        self._on_ack = on_ack
        self._listener = SocketListener(ack_socket_name(engine_model))
        self._thread = BackgroundLoop("receipts", self._listen, "a receipt of chunks was lost", report)
        self._thread.start()

    def close(self) -> None:
        self._thread.close(wake=self._listener.wake)
        self._listener.close()

    def _listen(self) -> None:
        for message in self._listener.receive():
            if len(message) % _KEY.size == 0:
                keys = [key for (key,) in _KEY.iter_unpack(message)]
                self._thread.attempt(partial(self._on_ack, keys))


class ChunkAckSender:
    """Sends the keys of received chunks to the engine's model of the same server."""

    def __init__(self, engine_model: str) -> None:
        self._name = ack_socket_name(engine_model)
        self._connection: socket.socket | None = None

    def send(self, keys: Sequence[int]) -> None:
        """Tell the engine's model; where it does not listen (yet, or any more), nobody waits for receipts."""
        message = b"".join(map(_KEY.pack, keys))
        for _ in range(2):  # a model that has been loaded anew listens on another socket
            try:
                if self._connection is None:
                    self._connection = connect(self._name)
                self._connection.send(message, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return  # an engine's model that does not read for so long is about to be replaced
            except OSError:
                self.close()
            else:
                return

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
