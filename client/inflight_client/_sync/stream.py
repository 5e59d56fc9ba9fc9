# Generated from _async/stream.py by scripts/unasync.py; do not edit.
"""A streamed answer, for blocking code."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from inflight_client._sync.connection import Connection
from inflight_client.call import Call
from inflight_client.deadline import Deadline
from inflight_client.deployments.answer import AnswerDecoder
from inflight_client.errors import InflightError
from inflight_client.results import Delta, Generation
from inflight_client.stream_base import StreamBase
from inflight_client.transport import Responses


class Stream(StreamBase):
    """An iterator over the deltas of one answer. The first iteration sends the request.

    Leaving it early cancels the request on the server: by `close()`, at the end of its `with` block,
    or when it is garbage-collected. One thread at a time reads it;
    another thread may close it.
    """

    def __init__(self, call: Call, connection: Connection) -> None:
        super().__init__(call)
        self._connection = connection
        self._responses: Responses | None = None
        self._closed = threading.Event()
        self._sent_at = 0.0
        self._reading = False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Delta:
        if self._closed.is_set():
            raise StopIteration
        if self._reading:
            raise RuntimeError("another thread reads this stream already")
        self._reading = True
        try:
            delta = self._first_delta() if self._answer is None else self._next_delta(self._answer)
        except BaseException:
            self.close()
            raise
        finally:
            self._reading = False
        if delta is None:
            self.close()
            raise StopIteration
        self._transcript.add(delta)
        return delta

    def read(self) -> Generation:
        """Read to the end and return the whole answer. Raises InflightError; `cancelled` if the stream was closed."""
        for _ in self:
            pass
        if (generation := self.generation) is None:
            raise InflightError("the answer was cancelled before its end", "cancelled")
        return generation

    def close(self) -> None:
        """Cancel the rest of the answer and wait until the call's resources are released. May be called twice."""
        self._closed.set()
        left = self._responses is not None and not self._transcript.ended
        self._close_responses()
        if left:
            self._connection.abandon(self._call, self._sent_at)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _first_delta(self) -> Delta | None:
        """Return the first delta; a call is retried only up to this point."""
        self._transcript.start()
        whole = Deadline(self._call.timeout)
        first = Deadline(self._call.first_token_timeout, "the first token")
        for attempt in self._connection.retries.attempts(whole.sooner(first), self._closed):
            with attempt:
                try:
                    return self._attempt(whole, first)
                except InflightError as error:
                    self._close_responses()
                    self._connection.invalidate_after(error)
                    raise
        raise AssertionError("the attempts ended with neither an answer nor an error")

    def _attempt(self, whole: Deadline, first: Deadline) -> Delta | None:
        """Send the request once and wait for its first delta."""
        self._transcript.attempts += 1
        answer, self._responses = self._connection.send(self._call, whole, first)
        self._sent_at = time.monotonic()
        if self._closed.is_set():  # by another thread, meanwhile
            raise InflightError("the answer was cancelled before its end", "cancelled")
        delta = self._next_delta(answer)
        self._answer = answer
        return delta

    def _next_delta(self, answer: AnswerDecoder) -> Delta | None:
        """Return the next delta; None after the last one."""
        responses = self._responses
        if responses is None:  # closed by another thread
            return None
        for response in responses:
            delta = answer.add_response(response)
            if answer.done:
                self._close_responses()
            return delta
        return answer.finish()

    def _close_responses(self) -> None:
        responses, self._responses = self._responses, None
        if responses is not None:
            responses.close()
