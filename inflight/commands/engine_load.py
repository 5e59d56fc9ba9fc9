"""How busy an engine is, out of a metrics page: ours and TensorRT-LLM's backend have the same names for it."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol


class Metrics(Protocol):
    """A metrics page that was read."""

    def value(self, name: str, **labels: str) -> float | None: ...


@dataclass(frozen=True)
class EngineLoad:
    """Requests that run and wait, places for them, use of the KV cache (0 to 1) and its tokens; steps made so far.

    None: the page has no such series. `generating` are the requests that get a token in each step.
    """

    running: int | None
    waiting: int | None
    places: int | None
    kv_cache_use: float | None
    kv_cache_tokens: int | None
    generating: int | None
    steps: int | None
    at: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, metrics: Metrics) -> EngineLoad:
        def requests(kind: str) -> int | None:
            return _whole(metrics.value("nv_trt_llm_request_metrics", request_type=kind))

        def blocks(kind: str) -> float | None:
            return metrics.value("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type=kind)

        batch = metrics.value(
            "nv_trt_llm_inflight_batcher_metrics", inflight_batcher_specific_metric="generation_requests"
        )
        return cls(
            running=requests("scheduled"),
            waiting=requests("waiting"),
            places=requests("max"),
            kv_cache_use=blocks("fraction"),
            kv_cache_tokens=_whole(_product(blocks("max"), blocks("tokens_per"))),
            generating=_whole(batch),
            steps=_whole(metrics.value("nv_trt_llm_general_metrics", general_type="iteration_counter")),
        )

    @property
    def idle(self) -> bool:
        """Nothing runs."""
        return not self.running

    def as_object(self) -> dict[str, Any]:
        """For JSON: what stands still."""
        moving = ("steps", "generating", "at")
        return {name: value for name, value in asdict(self).items() if name not in moving}

    def tokens_per_second(self, before: EngineLoad) -> float | None:
        """About how many tokens the engine made since: steps, times the requests that got one in each.

        Speculation makes more of a step, so it is the least there.
        """
        seconds = self.at - before.at
        if self.steps is None or before.steps is None or self.generating is None or seconds <= 0:
            return None
        # A counter that fell is that of an engine which was started again.
        steps = max(0, self.steps - before.steps)
        return steps / seconds * (self.generating + (before.generating or 0)) / 2


def _whole(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) else int(value)


def _product(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one * other
