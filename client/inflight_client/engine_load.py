"""How busy an engine is, out of a metrics page: ours and TensorRT-LLM's backend have the same names for it."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from inflight_client.metrics import Metrics


@dataclass(frozen=True)
class EngineLoad:
    """Requests that run and wait, places for them, use of the KV cache (0 to 1) and its tokens.

    None: the page has no such series. `steps` were made so far, where there are several engines by the one that made
    most; `generating` are the requests that get a token in each.
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
        """Read a page that was fetched `at` that moment of the monotonic clock; now, unless told."""
        requests = _values_by_label(metrics, "nv_trt_llm_request_metrics", "request_type")
        blocks = _values_by_label(metrics, "nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type")
        batch = _values_by_label(metrics, "nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric")
        general = _values_by_label(metrics, "nv_trt_llm_general_metrics", "general_type")
        size = [count * each for count, each in zip(blocks["max"], blocks["tokens_per"], strict=False)]
        return cls(
            running=_total(requests["scheduled"]),
            waiting=_total(requests["waiting"]),
            capacity=_total(requests["max"]),
            kv_cache_use=max(blocks["fraction"], default=None),
            kv_cache_tokens=_total(size),
            generating=_total(batch["generation_requests"]),
            steps=int(max(general["iteration_counter"], default=0)) if general["iteration_counter"] else None,
            read_at=time.monotonic() if at is None else at,
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what stands still."""
        moving = ("steps", "generating", "read_at")
        return {name: value for name, value in asdict(self).items() if name not in moving}

    def tokens_per_second(self, earlier: EngineLoad) -> float | None:
        """About how many tokens the engine made since: steps, times the requests that got one in each.

        Speculation makes more of a step, so it is the least there.
        """
        seconds = self.read_at - earlier.read_at
        if self.steps is None or earlier.steps is None or self.generating is None or seconds <= 0:
            return None
        # A counter that fell is that of an engine which was started again.
        steps = max(0, self.steps - earlier.steps)
        return steps / seconds * (self.generating + (earlier.generating or 0)) / 2


def _values_by_label(metrics: Metrics, name: str, label: str) -> defaultdict[str, list[float]]:
    """A gauge's values by one of its labels, of each engine on the page."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    family = metrics.families.get(name)
    for sample in family.samples if family else ():
        if math.isfinite(sample.value):
            found[sample.labels.get(label, "")].append(sample.value)
    return found


def _total(values: list[float]) -> int | None:
    return int(sum(values)) if values else None
