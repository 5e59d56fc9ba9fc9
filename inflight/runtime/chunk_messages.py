"""The short way of a stream's tokens from the engine's model to a model that calls it.

Through Triton each chunk of each stream is a response of its own, which costs both models and the server about 0.2 ms
of processor time. Both models run in processes of the same server, so the caller may listen on an abstract Unix socket
and ask, by a parameter of its request, for the tokens there: one message for all streams of an engine step.

The last response of an answer still goes through Triton, and the message behind it says that it has come. Which of the
responses it is, their indices say, never the order in which they come. An error goes the short way: Triton 2.51 loses
those that come to a calling model behind a stream's first response, or hands them to another stream.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from inflight.runtime.lasting_thread import LastingThread
from inflight.runtime.messages import RequestError, Timings, TokenEvent

PARAMETER = "inflight_chunks"
"""The request parameter that names the model which listens."""

_MOST_BYTES = 2**18
_MOST_CHUNKS = 256
"""Chunks in a message. A step makes a few tokens of a stream at the most, so these fit one datagram."""


class TokenChunk(NamedTuple):
    """New tokens of the answer with that stream key.

    `ended` says that its last response has been sent, `error` (message and code) that its whole request has failed.
    `moments` are the times known so far (as in `Timings`), which come once.
    """

    key: int
    token_ids: Sequence[int] = ()
    log_probs: Sequence[float] = ()
    ended: bool = False
    error: tuple[str, str] | None = None
    moments: Sequence[int] = ()

    @property
    def timings(self) -> Timings | None:
        return Timings(*self.moments) if self.moments else None

    def joined(self, later: TokenChunk) -> TokenChunk:
        """This one and the next one for the same answer."""
        token_ids, log_probs = [*self.token_ids, *later.token_ids], [*self.log_probs, *later.log_probs]
        error, moments = self.error or later.error, later.moments or self.moments
        return TokenChunk(self.key, token_ids, log_probs, later.ended, error, moments)


class ChunkReceiver:
    """Listens for a model, and hands on what has come for each answer, in order and in a thread of its own.

    What comes for an answer while others are handed on comes as one, so it never lags behind by much. What `on_chunk`
    raises is told to `report`, and all other answers get theirs.
    """

    def __init__(self, model: str, on_chunk: Callable[[TokenChunk], None], report: Callable[[str], None]) -> None:
        self._on_chunk = on_chunk
        self._messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(_address(model))
        # Reading never waits for handling: the engine's model, which serves others too, would wait for both.
        self._reader = LastingThread("chunks-read", self._read, "tokens of streams could not be read", report)
        self._handler = LastingThread("chunks", self._handle, "tokens of a stream could not be handed on", report)
        self._reader.start()
        self._handler.start()

    def close(self) -> None:
        self._reader.close(wake=lambda: self._socket.shutdown(socket.SHUT_RDWR))
        self._handler.close(wake=lambda: self._messages.put(b""))
        self._socket.close()

    def _read(self) -> None:
        self._messages.put(self._socket.recv(_MOST_BYTES))

    def _handle(self) -> None:
        messages = [self._messages.get()]
        while not self._messages.empty():
            messages.append(self._messages.get())
        found: dict[int, TokenChunk] = {}
        for chunk in (chunk for message in messages for chunk in _decoded(message)):
            before = found.pop(chunk.key, None)  # so that answers end in the order in which they have ended
            found[chunk.key] = chunk if before is None else before.joined(chunk)
        for chunk in found.values():
            self._handler.attempt(partial(self._on_chunk, chunk))


class AnswerEnd:
    """Takes the chunks of an answer that is wanted whole, and lets one thread wait for its end.

    A failure comes as two chunks, or as one: what is known first counts.
    """

    def __init__(self) -> None:
        self._known: Future[None] = Future()

    def take(self, chunk: TokenChunk) -> None:
        if self._known.done():
            return
        if chunk.error is not None:
            self._known.set_exception(RequestError(*chunk.error))
        elif chunk.ended:
            self._known.set_result(None)

    def wait(self) -> None:
        """Return once its last response has been sent; RequestError where its request has failed."""
        self._known.result()


class Caller:
    """The model that asked for a request's tokens the short way; `key` is the stream key of its first answer."""

    def __init__(self, sender: ChunkSender, model: str, key: int) -> None:
        self._sender = sender
        self._model = model
        self._key = key

    @classmethod
    def of(cls, sender: ChunkSender, parameters: str, key: int) -> Caller | None:
        """Who a request's parameters (JSON, as Triton has them) name, where it has a stream key."""
        model = json.loads(parameters).get(PARAMETER) if key and PARAMETER in parameters else None
        return cls(sender, str(model), key) if model else None

    def give(self, key: int, event: TokenEvent) -> None:
        """New tokens of an answer; they are sent with the sender's next `flush`."""
        timings = event.timings
        moments = (timings.arrival_ns, timings.admitted_ns, timings.first_token_ns, timings.end_ns) if timings else ()
        self._sender.add(self._model, TokenChunk(key, event.token_ids, event.log_probs, moments=moments))

    def end(self, key: int) -> None:
        """An answer's last response has been sent."""
        self._sender.add(self._model, TokenChunk(key, ended=True))
        self._sender.flush()

    def fail(self, message: str, code: str) -> None:
        """The request has failed, with all of its answers."""
        self._sender.add(self._model, TokenChunk(self._key, error=(message, code)))
        self._sender.flush()


class ChunkSender:
    """Collects chunks for any receivers until they are flushed. Thread-safe."""

    def __init__(self) -> None:
        self._outbox: dict[str, list[TokenChunk]] = {}
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def add(self, receiver: str, chunk: TokenChunk) -> None:
        with self._lock:
            self._outbox.setdefault(receiver, []).append(chunk)

    def flush(self) -> None:
        """Send what has been added; who does not listen any more has been ended, and its requests with it."""
        if not self._outbox:
            return
        with self._lock:
            outbox, self._outbox = self._outbox, {}
            for receiver, chunks in outbox.items():
                for start in range(0, len(chunks), _MOST_CHUNKS):
                    self._send(receiver, chunks[start : start + _MOST_CHUNKS])

    def close(self) -> None:
        self._socket.close()

    def _send(self, receiver: str, chunks: list[TokenChunk]) -> None:
        try:
            self._socket.sendto(json.dumps(chunks, separators=(",", ":")).encode(), _address(receiver))
        except OSError:
            pass


def _decoded(message: bytes) -> Iterable[TokenChunk]:
    """The chunks of a message; nothing of one that the engine's model can't have sent."""
    try:
        return [TokenChunk(*fields) for fields in json.loads(message)]
    except (ValueError, TypeError):
        return []


def _address(model: str) -> str:
    server = os.environ.get("INFLIGHT_SERVER_ID") or os.getppid()
    return f"\0inflight-chunks-{server}-{model}"
