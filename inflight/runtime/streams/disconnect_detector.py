"""Finds the streams behind an ensemble whose client has disconnected.

Triton does not report to a decoupled engine behind an ensemble that a request was cancelled; it only stops passing its
chunks to postprocessing. So each chunk has a key, and postprocessing acknowledges each. A chunk without acknowledgement
may be late or dropped. To find out, a probe is sent to postprocessing after it: postprocessing takes requests in order
of arrival, so if the probe is acknowledged and the chunk is not, the chunk was dropped.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from inflight.runtime.background_loop import BackgroundLoop
from inflight.runtime.streams.local_socket import SocketListener, connect, server_id

_KEY = struct.Struct("<Q")


def ack_socket_name(engine_model: str) -> str:
    """Return the name of the socket on which that model listens."""
    return f"inflight-chunk-acks-{server_id()}-{engine_model}"


class ChunkAckListener:
    """Receives the acknowledgements for one engine's model and passes each to `on_ack`, in order, in a separate thread.

    Exceptions of `on_ack` go to `report`; the next acknowledgement is still delivered.
    """

    def __init__(
        self, engine_model: str, on_ack: Callable[[Sequence[int]], None], report: Callable[[str], None]
    ) -> None:
        self._on_ack = on_ack
        self._listener = SocketListener(ack_socket_name(engine_model))
        self._thread = BackgroundLoop("chunk-acks", self._listen, "an acknowledgement of chunks was lost", report)
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
        """Send the keys; if the engine's model does not listen (yet, or any more), it expects none."""
        message = b"".join(map(_KEY.pack, keys))
        for _ in range(2):  # a reloaded model listens on another socket
            try:
                if self._connection is None:
                    self._connection = connect(self._name)
                self._connection.send(message, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return  # an engine's model that does not read for this long is about to be replaced
            except OSError:
                self.close()
            else:
                return

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


ACK_TIMEOUT_SECONDS = 0.02
"""A chunk without acknowledgement for this long is probed. Chunks overtake each other by far less."""

_KEYS = 2**64
_MAX_PROBES = 100
"""Limit of pending probes; on a busy machine an acknowledgement comes after the next probes were sent."""


@dataclass
class _Stream:
    """Counts of a stream's chunks: those with a key, those that Triton accepted, and the last acknowledged one."""

    key: int
    handle: int
    numbered: int = 0
    sent: int = 0
    received: int = 0
    waiting_since: float = 0.0

    @property
    def awaits_ack(self) -> bool:
        return self.sent > self.received

    def chunk_key(self, number: int) -> int:
        return (self.key + number) % _KEYS


class DisconnectDetector:
    """Cancels with `cancel(handle)` the requests of streams whose chunks are dropped; `probe(key)` sends a probe.

    A separate thread sends the probes. Exceptions of either function go to `report`, and the detector continues.
    Thread-safe.
    """

    def __init__(
        self, cancel: Callable[[int], None], probe: Callable[[int], None], report: Callable[[str], None]
    ) -> None:
        self._cancel = cancel
        self._probe = probe
        self._lock = threading.Lock()
        self._streams: dict[int, _Stream] = {}
        self._chunks: dict[int, tuple[_Stream, int]] = {}
        self._probes: dict[int, list[tuple[_Stream, int]]] = {}
        self._wake = threading.Event()
        trouble = "a stream of a disconnected client could not be cancelled"
        self._thread = BackgroundLoop("disconnect-detector", self._run, trouble, report)
        self._thread.start()

    def close(self) -> None:
        self._thread.close(wake=self._wake.set)

    def next_chunk_key(self, key: int, handle: int) -> int:
        """Return the key of the next chunk of stream `key` and request `handle`; call `mark_sent` after sending it."""
        with self._lock:
            stream = self._streams.setdefault(key, _Stream(key, handle))
            stream.numbered += 1
            self._chunks[stream.chunk_key(stream.numbered)] = (stream, stream.numbered)
            return stream.chunk_key(stream.numbered)

    def mark_sent(self, key: int) -> None:
        """Record that Triton accepted the chunk: from now on it is in postprocessing's queue, or was dropped."""
        with self._lock:
            stream = self._streams.get(key)
            if stream is None:
                return
            if not stream.awaits_ack:
                stream.waiting_since = time.monotonic()
            stream.sent = stream.numbered
        self._wake.set()

    def end_stream(self, key: int) -> None:
        """Forget a stream; its last chunks need no acknowledgement."""
        with self._lock:
            stream = self._streams.pop(key, None)
            if stream is not None:
                self._forget_chunks(stream, range(stream.received + 1, stream.numbered + 1))

    def on_ack(self, keys: Sequence[int]) -> None:
        """Handle an acknowledgement: the keys of chunks and probes in one execution of postprocessing."""
        dropped: list[_Stream] = []
        with self._lock:
            for stream, number in filter(None, map(self._chunks.get, keys)):
                if number > stream.received:
                    self._forget_chunks(stream, range(stream.received + 1, number + 1))
                    stream.received = number
                    stream.waiting_since = time.monotonic()
            for key in keys:
                suspects = self._probes.pop(key, ())
                dropped += [each for each, count in suspects if each.received == count and each.key in self._streams]
        for stream in dropped:
            self.end_stream(stream.key)
            self._thread.attempt(partial(self._cancel, stream.handle))

    def _forget_chunks(self, stream: _Stream, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._chunks.pop(stream.chunk_key(number), None)

    def _run(self) -> None:
        self._wake.wait()
        self._wake.clear()
        time.sleep(ACK_TIMEOUT_SECONDS)
        self._probe_late_chunks()

    def _probe_late_chunks(self) -> None:
        """Send a probe after the late chunks; check again later while any chunk is not acknowledged."""
        latest = time.monotonic() - ACK_TIMEOUT_SECONDS
        probe_key = secrets.randbits(63) + 1
        with self._lock:
            waiting = [stream for stream in self._streams.values() if stream.awaits_ack]
            suspects = [(stream, stream.received) for stream in waiting if stream.waiting_since <= latest]
            if suspects:
                self._probes[probe_key] = suspects
            if len(self._probes) > _MAX_PROBES:
                del self._probes[next(iter(self._probes))]
        if waiting:
            self._wake.set()
        if suspects:
            self._probe(probe_key)
