"""Runs planned micro-batches on an encoder, and hands out each text's result when it is done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

from inflight.common.request_error import RequestError
from inflight.runtime.background_loop import BackgroundLoop
from inflight.runtime.encoders.batch_planner import Planner, PlannerLimits, WaitingText
from inflight.runtime.encoders.encoder import Encoder, EncoderInput
from inflight.runtime.engine.queue_full import queue_full_error

_CANCEL_SECONDS = 0.1
"""How often requests of waiting texts are polled for a cancellation or a deadline."""
_MAX_ERROR_CHARACTERS = 400
"""Characters of an engine's own error message that are passed on."""
_MAX_POLLED = 1000
"""Requests polled at a time, in turn: each takes Triton some microseconds."""
_DELIVERY_SECONDS = 5
"""Limit of the time that delivering the last results takes when the batcher is closed."""


class EncoderRequest(Protocol):
    """The request that texts belong to. Called from the batcher's threads."""

    def deliver(self, index: int, row: Any, error: RequestError | None) -> None:
        """Take the result of the text with this index: a row of numbers, or why there is none."""

    def end_if_cancelled(self) -> bool:
        """End the request if its client has left or its deadline has passed; return whether it has ended."""


@dataclass(frozen=True)
class Computed:
    """A micro-batch that was computed: its texts, its real and padded tokens, and its seconds.

    `waits` are the seconds that each text waited, with its priority.
    """

    real_tokens: int
    padded_tokens: int
    seconds: float
    waits: tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False)
class _Entry:
    request: EncoderRequest
    index: int
    text: EncoderInput


_Waiting = WaitingText[_Entry]


class Batcher:
    """Queues texts, plans micro-batches of them and computes these, one per encoder at a time.

    A request reserves its texts first, then adds each as soon as it is tokenized, or releases it. A micro-batch that
    fails is computed text by text, so that only the text that is the cause fails. So does a text with a row that has a
    number that is not finite. `computed` is called in another thread after each micro-batch.
    """

    def __init__(
        self,
        encoders: Sequence[Encoder],
        limits: PlannerLimits,
        max_queue_texts: int,
        computed: Callable[[Computed], None],
        report: Callable[[str], None],
    ) -> None:
        self._planner: Planner[_Entry] = Planner(limits)
        self._padded_length, self._packed = encoders[0].padded_length, encoders[0].packed
        self._max_queue_texts = max_queue_texts
        self._computed = computed
        self._report = report
        self._changed = threading.Condition()
        self._reserved = 0
        self._closed = False
        self._waiting: dict[EncoderRequest, set[_Waiting]] = {}
        self._unpolled: list[EncoderRequest] = []
        self._results: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            BackgroundLoop(f"encoder-{number}", partial(self._run_next, encoder), "an encoder failed", report)
            for number, encoder in enumerate(encoders)
        ]
        self._delivery = BackgroundLoop("encoder-results", self._deliver_next, "a result was not delivered", report)
        self._poll = BackgroundLoop("encoder-cancel", self._drop_cancelled, "a cancellation was not detected", report)
        for thread in (*self._threads, self._delivery, self._poll):
            thread.start()

    def reserve(self, texts: int) -> None:
        """Reserve room for a request's texts. Raises RequestError (`overloaded`); an empty queue takes any request."""
        with self._changed:
            if self._reserved and self._reserved + texts > self._max_queue_texts:
                raise queue_full_error(self._max_queue_texts, "texts")
            self._reserved += texts

    def release(self, texts: int) -> None:
        """Give back the room of texts that are not added."""
        with self._changed:
            self._reserved -= texts

    def add(
        self, request: EncoderRequest, texts: Sequence[tuple[int, EncoderInput]], priorities: Sequence[int]
    ) -> None:
        """Queue reserved texts of a request, each with its index in the request."""
        now = time.monotonic()
        with self._changed:
            own = self._waiting.setdefault(request, set())
            for (index, text), priority in zip(texts, priorities, strict=True):
                entry = WaitingText(
                    _Entry(request, index, text), self._padded_length(len(text.token_ids)), priority, now
                )
                own.add(entry)
                self._planner.add(entry)
            self._changed.notify(len(texts))

    def drop(self, request: EncoderRequest) -> None:
        """Forget the waiting texts of a request."""
        with self._changed:
            for entry in self._waiting.pop(request, ()):
                self._reserved -= self._planner.drop(entry)

    @property
    def waiting_texts(self) -> int:
        """Return how many texts wait or are being tokenized."""
        return self._reserved

    def close(self) -> None:
        """End all threads, and deliver the results of computed texts; waiting texts get none."""
        for thread in self._threads:
            thread.stop()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.close()
        delivered = threading.Event()
        self._results.put(delivered.set)
        delivered.wait(_DELIVERY_SECONDS)
        self._delivery.close(wake=partial(self._results.put, None))
        self._poll.close()

    def _run_next(self, encoder: Encoder) -> None:
        with self._changed:
            while not len(self._planner) and not self._closed:
                self._changed.wait()
            if self._closed:
                return
            now = time.monotonic()
            batch = self._planner.next_batch(now)
            self._reserved -= len(batch)
            for text in batch:
                own = self._waiting[text.item.request]
                own.discard(text)
                if not own:
                    del self._waiting[text.item.request]
        rows, errors = self._compute(encoder, [text.item.text for text in batch])
        seconds = time.monotonic() - now
        self._results.put(partial(self._deliver, batch, rows, errors, now, seconds))

    def _compute(self, encoder: Encoder, texts: list[EncoderInput]) -> tuple[Any, list[RequestError | None]]:
        try:
            rows = np.asarray(encoder.run(texts), dtype=np.float32)
            finite = np.isfinite(rows.reshape(len(texts), -1)).all(axis=1)
            return rows, [None if good else _not_computed("its values are not finite") for good in finite.tolist()]
        except Exception as error:
            if len(texts) == 1:
                why = " ".join(f"{type(error).__name__}: {error}".split())
                self._report(f"a text could not be computed: {why}")
                return [None], [_not_computed(f"the engine failed on it ({why[:_MAX_ERROR_CHARACTERS]})")]
        alone = [self._compute(encoder, [text]) for text in texts]
        return [rows[0] for rows, _ in alone], [errors[0] for _, errors in alone]

    def _deliver_next(self) -> None:
        deliver = self._results.get()
        if deliver is not None:
            deliver()

    def _deliver(
        self, batch: list[_Waiting], rows: Any, errors: list[RequestError | None], started: float, seconds: float
    ) -> None:
        for text, row, error in zip(batch, rows, errors, strict=True):
            entry = text.item
            self._delivery.attempt(
                partial(entry.request.deliver, entry.index, None if error is not None else row, error)
            )
        real = sum(len(text.item.text.token_ids) for text in batch)
        padded = real if self._packed else len(batch) * max(text.tokens for text in batch)
        waits = tuple((text.priority, started - text.arrival) for text in batch)
        self._computed(Computed(real, padded, seconds, waits))

    def _drop_cancelled(self) -> None:
        self._poll.pause(_CANCEL_SECONDS)
        if not self._unpolled:
            with self._changed:
                self._unpolled = list(self._waiting)
        for request in self._unpolled[:_MAX_POLLED]:
            if request.end_if_cancelled():
                self.drop(request)
        del self._unpolled[:_MAX_POLLED]


def _not_computed(why: str) -> RequestError:
    return RequestError(
        f"the text could not be computed: {why}; change the text, or check the engine", "text_not_computed"
    )
