"""A direct channel for a stream's tokens from the engine's model to a model that calls it.

Through Triton, each chunk of each stream is a separate response, which costs both models and the server about 0.2 ms of
processor time. Both models run in processes of the same server, so the caller listens on a socket (`local_socket`) and
subscribes to the tokens with a request parameter: one message holds the chunks of all streams of an engine step.

The last response of an answer still goes through Triton; a later message announces it. The response's index tensors
identify its answer, since the order of responses is not defined. Errors use the channel: Triton 2.51 loses those that
reach a calling model after a stream's first response, or delivers them to another stream.
"""

from __future__ import annotations

import errno
import json
import queue
import re
import secrets
import select
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from inflight.runtime.background_loop import BackgroundLoop
from inflight.runtime.messages import RequestError, RequestTimings, TokenEvent
from inflight.runtime.streams.local_socket import SocketListener, connect

_LOST_TOKENS = (
    "tokens of the answer were lost on their way between two models; send the request again",
    "answer_damaged",
)

CHUNKS_PARAMETER = "inflight_chunks"
"""The request parameter that names the listening model, by its receiver's `address`."""

_PREFIX = "inflight-chunks-"
_ADDRESS = re.compile(r"[0-9a-f]{32}")
_MAX_MESSAGE_BYTES = 2**16
"""Limit of a message; less if the kernel's limit is lower."""
_MIN_MESSAGE_BYTES = 512
"""Larger than any error message."""
_MAX_ERROR_CHARACTERS = 2000
"""Limit of an error's sentence, which may quote the request."""
_RETRY_MILLISECONDS = 100
_encode = json.JSONEncoder(separators=(",", ":")).encode


class TokenChunk(NamedTuple):
    """New tokens of the answer with that stream key.

    `ended` says that its last response has been sent, `error` (message and code) that its whole request has failed.
    `moments` are the times known so far (as in `RequestTimings`), sent once. `position` is how many tokens of the
    answer came in chunks before this one, which shows whether any were lost.
    """

    key: int
    token_ids: Sequence[int] = ()
    log_probs: Sequence[float] = ()
    ended: bool = False
    error: tuple[str, str] | None = None
    moments: Sequence[int] = ()
    position: int = 0

    @property
    def timings(self) -> RequestTimings | None:
        return RequestTimings(*self.moments) if self.moments else None

    def merged(self, later: TokenChunk) -> TokenChunk:
        """Return this chunk and a later one of the same answer as one; a failed one if tokens between them are lost."""
        token_ids, log_probs = [*self.token_ids, *later.token_ids], [*self.log_probs, *later.log_probs]
        error, moments = self.error or later.error, later.moments or self.moments
        if error is None and later.position != self.end:
            error = _LOST_TOKENS
        return TokenChunk(self.key, token_ids, log_probs, later.ended, error, moments, self.position)

    @property
    def end(self) -> int:
        """Return the position of the next chunk."""
        return self.position + len(self.token_ids)

    def check_position(self, position: int) -> None:
        """Raise RequestError if the request has failed, or if the chunk is for another position."""
        error = self.error or (_LOST_TOKENS if self.position != position else None)
        if error is not None:
            raise RequestError(*error)


class ChunkReceiver:
    """Listens at its `address` and delivers each answer's chunks in order, in a separate thread.

    Chunks of an answer that arrive during delivery are merged, so delivery never lags much. Exceptions of `on_chunk` go
    to `report` and don't affect other answers.
    """

    def __init__(self, on_chunk: Callable[[TokenChunk], None], report: Callable[[str], None]) -> None:
        self._on_chunk = on_chunk
        self._messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.address = secrets.token_hex(16)
        """Not guessable, so that no client can direct tokens here."""
        self._listener = SocketListener(_PREFIX + self.address)
        # Reading is separate from handling: otherwise the engine's model, which serves others too, would wait for
        # handling.
        self._reader = BackgroundLoop("chunk-reader", self._read, "tokens of streams could not be read", report)
        self._handler = BackgroundLoop(
            "chunk-handler", self._handle, "tokens of a stream could not be handed on", report
        )
        self._reader.start()
        self._handler.start()

    def close(self) -> None:
        self._reader.close(wake=self._listener.wake)
        self._handler.close(wake=lambda: self._messages.put(b""))
        self._listener.close()

    def _read(self) -> None:
        for message in self._listener.receive():
            self._messages.put(message)

    def _handle(self) -> None:
        messages = [self._messages.get()]
        while not self._messages.empty():
            messages.append(self._messages.get())
        found: dict[int, TokenChunk] = {}
        for chunk in (chunk for message in messages for chunk in _decoded(message)):
            before = found.pop(chunk.key, None)  # keeps the order in which answers ended
            found[chunk.key] = chunk if before is None else before.merged(chunk)
        for chunk in found.values():
            self._handler.attempt(partial(self._on_chunk, chunk))


class AnswerCompletion:
    """Collects the chunks of a unary answer and lets one thread wait for its end.

    A failure may arrive in two chunks or in one: the first one counts.
    """

    def __init__(self) -> None:
        self._future: Future[None] = Future()

    def feed(self, chunk: TokenChunk) -> None:
        if self._future.done():
            return
        if chunk.error is not None:
            self._future.set_exception(RequestError(*chunk.error))
        elif chunk.ended:
            self._future.set_result(None)

    def wait(self) -> None:
        """Wait until its last response has been sent. Raises RequestError if its request has failed."""
        self._future.result()


class ChunkSubscriber:
    """The model that subscribed to a request's tokens; `key` is the stream key of the request's first answer."""

    def __init__(self, sender: ChunkSender, receiver: str, key: int) -> None:
        self._sender = sender
        self._receiver = receiver
        self._key = key
        self._positions: dict[int, int] = {}
        """Tokens of each answer sent so far."""

    @classmethod
    def from_parameters(cls, sender: ChunkSender, parameters: str, key: int) -> ChunkSubscriber | None:
        """Return the subscriber that a request's parameters (Triton's JSON) name, or None; needs a stream key.

        Raises RequestError (`invalid_parameter`) if no model of this user account listens there.
        """
        receiver = json.loads(parameters).get(CHUNKS_PARAMETER) if key and CHUNKS_PARAMETER in parameters else None
        if not receiver:
            return None
        sender.connect(str(receiver))
        return cls(sender, str(receiver), key)

    def send(self, key: int, event: TokenEvent) -> None:
        """Queue new tokens of an answer for the sender's next `flush`."""
        timings = event.timings
        moments = (timings.arrival_ns, timings.admitted_ns, timings.first_token_ns, timings.end_ns) if timings else ()
        position = self._positions.get(key, 0)
        chunk = TokenChunk(key, event.token_ids, event.log_probs, moments=moments, position=position)
        self._positions[key] = chunk.end
        self._sender.add(self._receiver, chunk)

    def send_end(self, key: int) -> None:
        """Announce that an answer's last response has been sent."""
        self._sender.add(self._receiver, TokenChunk(key, ended=True, position=self._positions.pop(key, 0)))
        self._sender.flush()

    def send_error(self, message: str, code: str) -> None:
        """Report that the request has failed, with all of its answers."""
        self._sender.add(self._receiver, TokenChunk(self._key, error=(message[:_MAX_ERROR_CHARACTERS], code)))
        self._sender.flush()


class ChunkSender:
    """Collects chunks for any receivers until they are flushed. Thread-safe; sending never waits for a receiver.

    Chunks that a receiver does not accept yet are kept, and a separate thread sends them once the receiver reads.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._outboxes: dict[str, _Outbox] = {}
        self._dirty: set[str] = set()
        """Receivers of the next `flush`."""
        self._blocked: set[str] = set()
        """Receivers that did not accept all chunks, which the thread retries."""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread = BackgroundLoop("chunk-sender", self._retry, "tokens of streams could not be sent", report)
        self._thread.start()

    def connect(self, receiver: str) -> None:
        """Connect to a receiver before chunks are added for it. Raises RequestError for a receiver of another user."""
        if receiver in self._outboxes:
            return
        try:
            if not _ADDRESS.fullmatch(receiver):
                raise FileNotFoundError("there is no such model")
            outlet = _Outbox(connect(_PREFIX + receiver))
        except OSError as error:
            what = f"{CHUNKS_PARAMETER} names a model that can't be reached ({error.strerror or error}); leave it out"
            raise RequestError(what, "invalid_parameter") from error
        with self._lock:
            if self._outboxes.setdefault(receiver, outlet) is not outlet:
                outlet.connection.close()

    def add(self, receiver: str, chunk: TokenChunk) -> None:
        with self._lock:
            outlet = self._outboxes.get(receiver)
            if outlet is not None:  # an absent receiver has been closed, with its requests
                outlet.add(chunk)
                self._dirty.add(receiver)

    def flush(self) -> None:
        """Send all added chunks."""
        if self._dirty:
            with self._lock:
                added, self._dirty = self._dirty - self._blocked, set()
                self._send(added)

    def close(self) -> None:
        self._thread.close(wake=self._wake.set)
        with self._lock:
            for outlet in self._outboxes.values():
                outlet.connection.close()
            self._outboxes = {}

    def _send(self, receivers: Iterable[str]) -> None:
        for receiver in receivers:
            outlet = self._outboxes.get(receiver)
            if outlet is None:  # closed since a chunk was added
                continue
            try:
                outlet.send()
                self._blocked.discard(receiver)
            except BlockingIOError:
                self._blocked.add(receiver)
                self._wake.set()
            except OSError:
                self._blocked.discard(receiver)
                del self._outboxes[receiver]
                outlet.connection.close()

    def _retry(self) -> None:
        """Wait for blocked receivers, and send to those that read again."""
        self._wake.wait()
        poll = select.poll()
        with self._lock:
            self._wake.clear()
            numbers = {self._outboxes[receiver].connection.fileno(): receiver for receiver in self._blocked}
        for number in numbers:
            poll.register(number, select.POLLOUT)
        ready = poll.poll(_RETRY_MILLISECONDS)
        with self._lock:
            self._send([receiver for number, _ in ready if (receiver := numbers[number]) in self._blocked])
            if self._blocked:
                self._wake.set()


class _Outbox:
    """A connection to a receiver, and its unsent chunks: one per answer, the latest last."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._chunks: dict[int, TokenChunk] = {}
        self._max_bytes = _MAX_MESSAGE_BYTES

    def add(self, chunk: TokenChunk) -> None:
        before = self._chunks.pop(chunk.key, None)
        self._chunks[chunk.key] = chunk if before is None else before.merged(chunk)

    def send(self) -> None:
        """Send all chunks. Raises BlockingIOError if the receiver does not read, OSError if it has closed."""
        unsent = [list(self._chunks.values())]
        self._chunks = {}
        try:
            while unsent:
                message = _encode(unsent[-1]).encode()
                if len(message) > self._max_bytes:
                    unsent += _split(unsent.pop())
                    continue
                try:
                    self.connection.send(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                    unsent.pop()
                except OSError as error:
                    if error.errno in (errno.ENOBUFS, errno.ENOMEM):
                        raise BlockingIOError from error
                    if error.errno != errno.EMSGSIZE or len(message) <= _MIN_MESSAGE_BYTES:
                        raise
                    self._max_bytes = len(message) - 1
        finally:
            for chunk in (chunk for chunks in reversed(unsent) for chunk in chunks):
                self.add(chunk)


def _split(chunks: list[TokenChunk]) -> list[list[TokenChunk]]:
    """Split chunks that are too long for a message in two, in reverse order; shorten an error's sentence."""
    middle = len(chunks) // 2
    if middle:
        return [chunks[middle:], chunks[:middle]]
    (chunk,) = chunks
    middle = len(chunk.token_ids) // 2
    if not middle:
        sentence, code = chunk.error or _LOST_TOKENS
        return [[chunk._replace(error=(sentence[: len(sentence) // 2], code))]]
    begin = chunk._replace(
        token_ids=chunk.token_ids[:middle], log_probs=chunk.log_probs[:middle], ended=False, error=None
    )
    end = chunk._replace(
        token_ids=chunk.token_ids[middle:], log_probs=chunk.log_probs[middle:], moments=(), position=begin.end
    )
    return [[end], [begin]]


def _decoded(message: bytes) -> Iterable[TokenChunk]:
    """Yield the chunks of a message; none if the engine's model can't have sent it."""
    try:
        return [_checked(TokenChunk(*fields)) for fields in json.loads(message)]
    except (ValueError, TypeError):
        return []


def _checked(chunk: TokenChunk) -> TokenChunk:
    """Return the chunk. Raises TypeError if a field has another type."""
    numbers = (chunk.key, chunk.position, *chunk.token_ids, *chunk.moments)
    texts = chunk.error or ()
    if (
        type(chunk.ended) is not bool
        or any(type(number) is not int for number in numbers)
        or any(type(number) not in (int, float) for number in chunk.log_probs)
        or any(type(text) is not str for text in texts)
        or len(texts) not in (0, 2)
        or len(chunk.moments) not in (0, 4)
    ):
        raise TypeError("a chunk's field is of another type")
    return chunk
