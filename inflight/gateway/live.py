"""The figures of `/live`: what the servers that generate text count, read from their metrics pages."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from inflight_client import InflightError
from inflight_client.metrics import Metrics

from inflight.gateway.servers import UpstreamServer

_FIGURES = {
    "nv_trt_llm_request_metrics": {
        "scheduled": "running",
        "context": "prefilling",
        "waiting": "waiting",
        "max": "places",
    },
    "nv_trt_llm_kv_cache_block_metrics": {"used": "blocks_used", "max": "blocks"},
    "nv_trt_llm_general_metrics": {"iteration_counter": "steps"},
    "inflight_step_tokens": {"prefill": "prefill_tokens", "decode": "decode_tokens"},
}
"""By metric and the value of its own label; servers of TensorRT-LLM's backend have the first three metrics."""
_FIRST_TOKEN = "inflight_time_to_first_token_seconds_bucket"
_SECONDS = 3.0


async def live_figures(gateway_page: bytes, servers: Sequence[UpstreamServer]) -> dict[str, Any]:
    """Return what waits in the gateway, and the state and figures of each server that does not only have encoders.

    `figures` are empty for a server that does not answer in time. Tokens and steps count from the server's start,
    `first_tokens` are the cumulative counts of the histogram's buckets by their upper bounds in seconds, and `read_at`
    is in seconds of the machine's monotonic clock.
    """
    generators = [server for server in servers if server.deployment or not server.encoders]
    return {
        "waiting": int(Metrics.parse(gateway_page.decode()).value("inflight_gateway_requests_waiting") or 0),
        "servers": await asyncio.gather(*map(_described, generators)),
    }


async def _described(server: UpstreamServer) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    try:
        figures = _figures(await server.client.metrics(timeout=_SECONDS))
    except InflightError:
        pass  # it starts or is gone, which `ready` says
    return {"address": server.address, "model": server.model, "ready": server.ready, "figures": figures}


def _figures(page: Metrics) -> dict[str, Any]:
    read_at = time.monotonic()
    figures: Counter[str] = Counter()
    first_tokens: Counter[str] = Counter()
    for name, labels, value in page.series():
        if name == _FIRST_TOKEN:
            first_tokens[labels["le"]] += int(value)
        for label in labels.values() if name in _FIGURES else ():
            if label in _FIGURES[name]:
                figures[_FIGURES[name][label]] += int(value)
    return {**figures, "first_tokens": first_tokens, "read_at": read_at} if figures else {}
