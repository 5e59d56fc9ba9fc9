"""Metrics of an encoder: counters and histograms of its texts and micro-batches."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from inflight.runtime.background_loop import BackgroundLoop
from inflight.runtime.encoders.batch_runner import Computed
from inflight.runtime.metrics.definitions import (
    ENCODER_BATCH_SECONDS,
    ENCODER_BATCH_TEXTS,
    ENCODER_BATCH_TOKENS,
    ENCODER_QUEUE_TIME,
    ENCODER_REFUSED,
    ENCODER_TEXTS,
    ENCODER_TOKENS,
    ENCODER_WAITING,
    MetricsSink,
)

Record = TypeVar("Record")

_PERIOD_S = 0.1
"""How often metrics are published. One value costs Triton about 20 microseconds."""


class EncoderMetrics:
    """Collects what happens, and publishes it from a separate thread, so that a slow sink delays no text.

    Thread-safe: other threads only append, and the publishing thread removes.
    """

    def __init__(self, sink: MetricsSink, waiting_texts: Callable[[], int], report: Callable[[str], None]) -> None:
        self._sink = sink
        self._waiting_texts = waiting_texts
        self._shown_waiting = 0
        self._batches: deque[Computed] = deque()
        self._texts: deque[str] = deque()
        self._refused: deque[str] = deque()
        self._thread = BackgroundLoop("encoder-metrics", self._run, "metrics were not published", report)
        self._thread.start()

    def computed(self, batch: Computed) -> None:
        """Record a micro-batch."""
        self._batches.append(batch)

    def ended(self, status: str) -> None:
        """Record that a text has ended: "ok", "error" or "cancelled"."""
        self._texts.append(status)

    def refused(self, code: str) -> None:
        """Record that a text or a request was refused."""
        self._refused.append(code)

    def close(self) -> None:
        """Publish what is left, and remove all metrics."""
        self._thread.close()
        self._thread.attempt(self._publish)
        self._sink.close()

    def _run(self) -> None:
        self._thread.pause(_PERIOD_S)
        self._publish()

    def _publish(self) -> None:
        batches = _drained(self._batches)
        texts = _drained(self._texts)
        refused = _drained(self._refused)
        for batch in batches:
            self._thread.attempt(partial(self._observe, batch))
        if batches:
            self._sink.add(ENCODER_TOKENS, "real", sum(batch.real_tokens for batch in batches))
            self._sink.add(ENCODER_TOKENS, "padded", sum(batch.padded_tokens for batch in batches))
        for status, times in Counter(texts).items():
            self._sink.add(ENCODER_TEXTS, status, times)
        for code, times in Counter(refused).items():
            if code in ENCODER_REFUSED.label_values:
                self._sink.add(ENCODER_REFUSED, code, times)
        waiting = self._waiting_texts()
        if waiting != self._shown_waiting:
            self._sink.set(ENCODER_WAITING, "", waiting)
            self._shown_waiting = waiting

    def _observe(self, batch: Computed) -> None:
        self._sink.observe(ENCODER_BATCH_TEXTS, len(batch.waits))
        self._sink.observe(ENCODER_BATCH_TOKENS, batch.padded_tokens)
        self._sink.observe(ENCODER_BATCH_SECONDS, batch.seconds)
        longest: dict[str, float] = {}
        for priority, seconds in batch.waits:
            sign = "normal" if not priority else "high" if priority > 0 else "low"
            longest[sign] = max(longest.get(sign, 0.0), seconds)
        for sign, seconds in longest.items():
            self._sink.observe(ENCODER_QUEUE_TIME, seconds, sign)


def _drained(records: deque[Record]) -> list[Record]:
    return [records.popleft() for _ in range(len(records))]
