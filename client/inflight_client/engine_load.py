"""The load of an engine, from a metrics page; inflight and TensorRT-LLM's backend use the same metric names.

A gateway's page has only the number of answers in flight.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from inflight_client.metrics import Metrics


@dataclass(frozen=True)
class EngineLoad:
    """Running and waiting requests, the maximum of each, use of the KV cache (0 to 1) and its size in tokens.

    None means that the page has no such series. `steps` counts the steps so far, of the engine with most steps if
    there are several; `generating` is the number of requests that get a token in each step.
    """

    running: int | None
    waiting: int | None
    capacity: int | None
    kv_cache_use: float | None
    kv_cache_tokens: int | None
    generating: int | None
    steps: int | None
    read_at: float

    @classmethod
    def from_metrics(cls, metrics: Metrics, at: float | None = None) -> EngineLoad:
        """Read a page that was fetched `at` this time of the monotonic clock (default: now)."""
        requests = _values_by_label(metrics, "nv_trt_llm_request_metrics", "request_type")
        blocks = _values_by_label(metrics, "nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type")
        batch = _values_by_label(metrics, "nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric")
        general = _values_by_label(metrics, "nv_trt_llm_general_metrics", "general_type")
        size = [count * each for count, each in zip(blocks["max"], blocks["tokens_per"], strict=False)]
        return cls(
            running=_total(_answers_in_flight(metrics) or requests["scheduled"]),
            waiting=_total(requests["waiting"]),
            capacity=_total(requests["max"]),
            kv_cache_use=max(blocks["fraction"], default=None),
            kv_cache_tokens=_total(size),
            generating=_total(batch["generation_requests"]),
            steps=int(max(general["iteration_counter"], default=0)) if general["iteration_counter"] else None,
            read_at=time.monotonic() if at is None else at,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON, without the time."""
        moving = ("steps", "generating", "read_at")
        return {name: value for name, value in asdict(self).items() if name not in moving}

    def tokens_per_second(self, earlier: EngineLoad) -> float | None:
        """Estimate tokens per second since `earlier`: steps times requests that get a token in each step.

        With speculative decoding a step adds more tokens, so the estimate is a lower bound.
        """
        seconds = self.read_at - earlier.read_at
        if self.steps is None or earlier.steps is None or self.generating is None or seconds <= 0:
            return None
        # A counter that decreased belongs to an engine that was restarted.
        steps = max(0, self.steps - earlier.steps)
        return steps / seconds * (self.generating + (earlier.generating or 0)) / 2


def _values_by_label(metrics: Metrics, name: str, label: str) -> defaultdict[str, list[float]]:
    """Return a gauge's values by one of its labels, one value for each engine on the page."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    family = metrics.families.get(name)
    for sample in family.samples if family else ():
        if math.isfinite(sample.value):
            values[sample.labels.get(label, "")].append(sample.value)
    return values


def _answers_in_flight(metrics: Metrics) -> list[float]:
    value = metrics.value("inflight_gateway_answers_in_flight")
    return [] if value is None else [value]


def _total(values: list[float]) -> int | None:
    return int(sum(values)) if values else None
