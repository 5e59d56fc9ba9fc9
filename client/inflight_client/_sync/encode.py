# Generated from _async/encode.py by scripts/unasync.py; do not edit.
"""Calls of encoders for blocking code: the requests of a call, sent several at a time."""

from __future__ import annotations

import threading
from collections.abc import Sized
from contextlib import closing
from typing import TYPE_CHECKING, Any

from inflight_client._sync.concurrent_calls import CallRunner
from inflight_client._sync.connection import Connection
from inflight_client.deadline import NEVER, Deadline
from inflight_client.encoder_call import EncoderOptions, EncoderRequest
from inflight_client.encoder_texts import CONCURRENCY, MAX_TEXTS, Splitter, join
from inflight_client.errors import InflightError
from inflight_client.result_order import ResultOrder, validate_source
from inflight_client.transport import Responses

if TYPE_CHECKING:
    from inflight_client.audio.clip_call import ClipRequest


def encode(connection: Connection, options: EncoderOptions, texts: Any) -> Any:
    """Return the result for any number of texts.

    Leaving it cancels its requests on the server. Triton's HTTP endpoint can't cancel; there they end at the deadline.
    """
    texts = (texts,) if isinstance(texts, str) else texts
    expected = "a text, or an iterable of texts"
    texts = validate_source(options.texts_name, texts, expected)
    deadline = Deadline(options.timeout)
    splitter = Splitter(options)
    requests: Any = splitter.requests(texts)
    done: list[EncoderRequest] = []
    if isinstance(texts, Sized) and len(texts) <= MAX_TEXTS[options.task]:
        requests = list(requests)
        if len(requests) == 1:
            call = EncoderCall(requests.pop(), connection, deadline)
            try:
                done.append(call.read())
            finally:
                call.close()
    if requests != []:
        runner = CallRunner(lambda request: EncoderCall(request, connection, deadline), CONCURRENCY)
        order = ResultOrder(as_completed=True, return_errors=False)
        with closing(runner.outcomes(requests, order)) as outcomes:
            for _, request in outcomes:
                done.append(request)
    return join(splitter, options, done)


class EncoderCall:
    """One request of a call, with its retries. Closing it cancels it."""

    def __init__(self, request: EncoderRequest | ClipRequest, connection: Connection, deadline: Deadline) -> None:
        self._request = request
        self._connection = connection
        self._deadline = deadline
        self._responses: Responses | None = None
        self._closed = threading.Event()

    def read(self) -> Any:
        """Send the request; return it with its answers and errors. Raises InflightError."""
        try:
            for attempt in self._connection.retries.attempts(self._deadline, self._closed):
                with attempt:
                    self._attempt()
        except InflightError as error:
            self._request.fail(self._connection.explain_encoder_error(error, self._request.options))
        self._request.raise_first()
        return self._request

    def close(self) -> None:
        self._closed.set()
        responses, self._responses = self._responses, None
        if responses is not None:
            responses.close()

    def _attempt(self) -> None:
        """Send the texts that have no answer yet once."""
        built = self._request.build(self._deadline.left())
        self._responses = responses = self._connection.transport.infer(built, self._deadline, NEVER)
        try:
            if self._closed.is_set():  # by another thread, meanwhile
                raise InflightError("the texts were given up before they were sent", "cancelled")
            for response in responses:
                self._request.add(response)
        finally:
            responses.close()
        self._request.check()
