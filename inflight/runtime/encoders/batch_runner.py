"""Runs planned micro-batches on an engine, and hands out each text's result when it is done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from inflight.common.request_error import RequestError
from inflight.runtime.background_loop import BackgroundLoop
from inflight.runtime.encoders.batch_planner import Planner, PlannerLimits, WaitingText
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
        """Take the result of the text with this index, or why there is none."""

    def end_if_cancelled(self) -> bool:
        """End the request if its client has left or its deadline has passed; return whether it has ended."""


class BatchInput(Protocol):
    """What an engine computes, such as a text: its size in tokens, and what it must share with others of its batch."""

    @property
    def size(self) -> int: ...

    @property
    def group(self) -> Hashable: ...


@dataclass(frozen=True, eq=False)
class Requeue:
    """The result of an input that is to be computed once more, as `input`, in a later micro-batch."""

    input: BatchInput


class BatchEngine(Protocol):
    """Computes one micro-batch at a time; each thread has its own engine.

    A `packed` one computes no padding. `noun` is what its inputs are called in errors, and begins their code.
    """

    packed: bool
    noun: str

    def padded_length(self, tokens: int) -> int:
        """Return the length to which a micro-batch is padded whose longest input has so many tokens."""

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return for each input of a micro-batch its result, a RequestError or `Requeue`."""

    def close(self) -> None: ...


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
    text: BatchInput


_Waiting = WaitingText[_Entry]


class Batcher:
    """Queues texts, plans micro-batches of them and computes these, one per engine at a time.

    A request reserves its texts first, then adds each as soon as it is tokenized, or releases it. A micro-batch that
    fails is computed again text by text, so that only the text that is the cause fails. An idle engine waits up to
    `window_s` seconds for further texts. `computed` is called in another thread after each micro-batch.
    """

    def __init__(
        self,
        engines: Sequence[BatchEngine],
        limits: PlannerLimits,
        max_queue_texts: int,
        computed: Callable[[Computed], None],
        report: Callable[[str], None],
        window_s: float = 0,
    ) -> None:
        self._planner: Planner[_Entry] = Planner(limits)
        self._engine, self._full, self._window_s = engines[0], limits.max_batch_texts, window_s
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
            BackgroundLoop(f"encoder-{number}", partial(self._run_next, engine), "an encoder failed", report)
            for number, engine in enumerate(engines)
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

    def add(self, request: EncoderRequest, texts: Sequence[tuple[int, BatchInput]], priorities: Sequence[int]) -> None:
        """Queue reserved texts of a request, each with its index in the request."""
        now = time.monotonic()
        with self._changed:
            for (index, text), priority in zip(texts, priorities, strict=True):
                self._queue(_Entry(request, index, text), priority, now)
            self._changed.notify(len(texts))

    def _queue(self, entry: _Entry, priority: int, arrival: float) -> None:
        text = entry.text
        waiting = WaitingText(entry, self._engine.padded_length(text.size), priority, arrival, text.group)
        self._waiting.setdefault(entry.request, set()).add(waiting)
        self._planner.add(waiting)

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

    def _run_next(self, engine: BatchEngine) -> None:
        with self._changed:
            if not len(self._planner):
                self._changed.wait_for(lambda: len(self._planner) or self._closed)
                self._changed.wait_for(lambda: len(self._planner) >= self._full or self._closed, self._window_s)
            if self._closed:
                return
            now = time.monotonic()
            batch = self._planner.next_batch(now)
            if not batch:  # another engine took it
                return
            self._reserved -= len(batch)
            for text in batch:
                own = self._waiting[text.item.request]
                own.discard(text)
                if not own:
                    del self._waiting[text.item.request]
            if len(self._planner):  # this engine may have been woken for texts that another one is to compute
                self._changed.notify()
        results = self._compute(engine, [text.item.text for text in batch])
        seconds = time.monotonic() - now
        with self._changed:
            for text, result in zip(batch, results, strict=True):
                if isinstance(result, Requeue):
                    entry = text.item
                    self._reserved += 1
                    self._queue(_Entry(entry.request, entry.index, result.input), text.priority, text.arrival)
                    self._changed.notify()
        self._results.put(partial(self._deliver, batch, results, now, seconds))

    def _compute(self, engine: BatchEngine, inputs: list[BatchInput], last_try: bool = False) -> Sequence[Any]:
        try:
            return engine.run(inputs)
        except Exception as error:
            if last_try:
                why = " ".join(f"{type(error).__name__}: {error}".split())
                self._report(f"a {engine.noun} could not be computed: {why}")
                return [not_computed(engine.noun, f"the engine failed on it ({why[:_MAX_ERROR_CHARACTERS]})")]
        return [self._compute(engine, [each], last_try=True)[0] for each in inputs]

    def _deliver_next(self) -> None:
        deliver = self._results.get()
        if deliver is not None:
            deliver()

    def _deliver(self, batch: list[_Waiting], results: Sequence[Any], started: float, seconds: float) -> None:
        for text, result in zip(batch, results, strict=True):
            if isinstance(result, Requeue):
                continue
            row, error = (None, result) if isinstance(result, RequestError) else (result, None)
            self._delivery.attempt(partial(text.item.request.deliver, text.item.index, row, error))
        real = sum(text.item.text.size for text in batch)
        padded = real if self._engine.packed else len(batch) * max(text.tokens for text in batch)
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


_NOT_COMPUTED = {"text": "text_not_computed", "clip": "clip_not_computed"}


def not_computed(noun: str, why: str) -> RequestError:
    """Return the error of an input that has no result."""
    return RequestError(
        f"the {noun} could not be computed: {why}; change the {noun}, or check the engine", _NOT_COMPUTED[noun]
    )
