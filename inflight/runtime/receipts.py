"""How postprocessing tells the engine's model which chunks have reached it.

Both models run in processes of the same server, so the engine's model listens on an abstract Unix socket named after
that server (by the number that `inflight serve` gives it, else by its process id), and postprocessing sends it the
keys of the chunks of each execution: numbers that only the two know.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Sequence

from inflight.runtime.lasting_thread import LastingThread

_KEY = struct.Struct("<Q")
_MOST_BYTES = 65536
# An engine's model that does not read for so long is about to be replaced; postprocessing goes on meanwhile.
_PATIENCE_SECONDS = 1.0


def _address(engine_model: str) -> str:
    server = os.environ.get("INFLIGHT_SERVER_ID") or os.getppid()
    return f"\0inflight-receipts-{server}-{engine_model}"


class ReceiptListener:
    """Takes the receipts for one engine's model and hands each to `on_receipt`, in order, in a thread of its own.

    What `on_receipt` raises is told to `report`; the next receipt is handed on all the same.
    """

    def __init__(
        self, engine_model: str, on_receipt: Callable[[Sequence[int]], None], report: Callable[[str], None]
    ) -> None:
        self._on_receipt = on_receipt
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(_address(engine_model))
        self._thread = LastingThread("receipts", self._listen, "a receipt of chunks was lost", report)
        self._thread.start()

    def close(self) -> None:
        self._thread.close(wake=lambda: self._socket.shutdown(socket.SHUT_RDWR))
        self._socket.close()

    def _listen(self) -> None:
        message = self._socket.recv(_MOST_BYTES)
        if message and len(message) % _KEY.size == 0:
            self._on_receipt([key for (key,) in _KEY.iter_unpack(message)])


class ReceiptSender:
    """Sends the keys of received chunks to the engine's model of the same server."""

    def __init__(self, engine_model: str) -> None:
        self._address = _address(engine_model)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(_PATIENCE_SECONDS)

    def send(self, keys: Sequence[int]) -> None:
        """Tell the engine's model; where it does not listen (yet, or any more), nobody waits for receipts."""
        try:
            self._socket.sendto(b"".join(map(_KEY.pack, keys)), self._address)
        except OSError:
            pass

    def close(self) -> None:
        self._socket.close()
