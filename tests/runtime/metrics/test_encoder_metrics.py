"""What the metrics of an encoder say of its micro-batches and texts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from inflight.runtime.encoders.batch_runner import Computed
from inflight.runtime.metrics.definitions import (
    ENCODER_BATCH_TEXTS,
    ENCODER_BATCH_TOKENS,
    ENCODER_QUEUE_TIME,
    ENCODER_REFUSED,
    ENCODER_TEXTS,
    ENCODER_TOKENS,
    ENCODER_WAITING,
    MetricFamily,
)
from inflight.runtime.metrics.encoder_metrics import EncoderMetrics
from tests.fixtures.waiting import wait_until


class Sink:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[MetricFamily, str]] = Counter()
        self.gauges: dict[tuple[MetricFamily, str], float] = {}
        self.observed: defaultdict[tuple[MetricFamily, str], list[float]] = defaultdict(list)
        self.closed = False

    def set(self, family: MetricFamily, label_value: str, value: float) -> None:
        self.gauges[family, label_value] = value

    def add(self, family: MetricFamily, label_value: str, count: int) -> None:
        assert label_value in family.label_values
        self.counts[family, label_value] += count

    def add_to(self, family: MetricFamily, labels: Mapping[str, str], count: int) -> None:
        raise AssertionError(family)

    def observe(self, family: MetricFamily, value: float, label_value: str = "") -> None:
        self.observed[family, label_value].append(value)

    def close(self) -> None:
        self.closed = True


def test_all_that_happened_is_published_once_even_at_the_end() -> None:
    sink = Sink()
    metrics = EncoderMetrics(sink, lambda: 7, lambda line: None)
    metrics.computed(Computed(90, 100, 0.5, ((0, 0.1), (0, 2.0), (3, 0.2))))
    wait_until(lambda: sink.gauges.get((ENCODER_WAITING, "")) == 7)
    metrics.computed(Computed(10, 10, 0.1, ((-1, 0.3),)))
    for status in ("ok", "ok", "error"):
        metrics.ended(status)
    for code in ("overloaded", "a code of another table"):
        metrics.refused(code)
    metrics.close()
    assert sink.closed
    assert sink.counts == {
        (ENCODER_TOKENS, "real"): 100,
        (ENCODER_TOKENS, "padded"): 110,
        (ENCODER_TEXTS, "ok"): 2,
        (ENCODER_TEXTS, "error"): 1,
        (ENCODER_REFUSED, "overloaded"): 1,
    }
    assert sink.observed[ENCODER_BATCH_TEXTS, ""] == [3, 1]
    assert sink.observed[ENCODER_BATCH_TOKENS, ""] == [100, 10]
    waits = {label: values for (family, label), values in sink.observed.items() if family is ENCODER_QUEUE_TIME}
    assert waits == {"normal": [2.0], "high": [0.2], "low": [0.3]}
