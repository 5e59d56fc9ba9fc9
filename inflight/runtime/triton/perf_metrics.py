"""Upstream's performance tensors of a request: timings, speculation and KV cache blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from inflight.runtime.messages import RequestTimings, SpeculationStats, TokenEvent
from inflight.runtime.triton.tensors import tensor

PERF_TENSORS = (
    *("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns"),
    *("kv_cache_alloc_total_blocks", "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks"),
    *("acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens"),
)
UNKNOWN = -1
"""For values that the engine's library does not report: how many of a request's blocks were reused."""


def perf_tensors(event: TokenEvent, timings: RequestTimings) -> list[Any]:
    """Return all performance tensors, each [1, 1].

    Times are nanoseconds of the machine's monotonic clock, 0 if unknown. The last response of an answer has the final
    values; earlier ones have the times known so far.
    """
    speculation = event.speculation or SpeculationStats()
    rate = speculation.accepted / speculation.drafted if speculation.drafted else 0.0
    return [
        tensor("arrival_time_ns", [[timings.arrival_ns]], np.int64),
        tensor("first_scheduled_time_ns", [[timings.admitted_ns]], np.int64),
        tensor("first_token_time_ns", [[timings.first_token_ns]], np.int64),
        tensor("last_token_time_ns", [[timings.end_ns]], np.int64),
        tensor("kv_cache_alloc_total_blocks", [[event.kv_blocks]], np.int32),
        tensor("kv_cache_alloc_new_blocks", [[UNKNOWN]], np.int32),
        tensor("kv_cache_reused_blocks", [[UNKNOWN]], np.int32),
        tensor("acceptance_rate", [[rate]], np.float32),
        tensor("total_accepted_draft_tokens", [[speculation.accepted]], np.int32),
        tensor("total_draft_tokens", [[speculation.drafted]], np.int32),
    ]
