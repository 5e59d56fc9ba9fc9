"""How postprocessing tells the engine's model which chunks have reached it.

Both models run in processes of the same server, so the engine's model listens on a socket named after that server
(`local_socket`), and postprocessing sends it the keys of the chunks of each execution: numbers that only the two know.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence
from functools import partial

from inflight.runtime.lasting_thread import LastingThread
from inflight.runtime.local_socket import Listener, connect, server_name

_KEY = struct.Struct("<Q")


def receipts_name(engine_model: str) -> str:
    """Where that model listens."""
    return f"inflight-receipts-{server_name()}-{engine_model}"


class ReceiptListener:
    """Takes the receipts for one engine's model and hands each to `on_receipt`, in order, in a thread of its own.

    What `on_receipt` raises is told to `report`; the next receipt is handed on all the same.
    """

    def __init__(
        self, engine_model: str, on_receipt: Callable[[Sequence[int]], None], report: Callable[[str], None]
    ) -> None:
        self._on_receipt = on_receipt
        self._listener = Listener(receipts_name(engine_model))
        self._thread = LastingThread("receipts", self._listen, "a receipt of chunks was lost", report)
        self._thread.start()

    def close(self) -> None:
        self._thread.close(wake=self._listener.wake)
        self._listener.close()

    def _listen(self) -> None:
        for message in self._listener.receive():
            if len(message) % _KEY.size == 0:
                keys = [key for (key,) in _KEY.iter_unpack(message)]
                self._thread.attempt(partial(self._on_receipt, keys))


class ReceiptSender:
    """Sends the keys of received chunks to the engine's model of the same server."""

    def __init__(self, engine_model: str) -> None:
        self._name = receipts_name(engine_model)
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
