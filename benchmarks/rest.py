"""Whether a server's engine has come to rest: nothing runs or waits in it, and no block of its KV cache is held."""

from __future__ import annotations

import re
import time
import urllib.request

from inflight.deploy.server import Server

_GAUGES = re.compile(
    r'^nv_trt_llm_(?:request_metrics|kv_cache_block_metrics)\{[^}]*?_type="(active|waiting|used)"[^}]*\} (\S+)$',
    re.MULTILINE,
)


def held(server: Server) -> dict[str, float]:
    """Requests that are `active` or `waiting`, and KV blocks that are `used`, as the metrics page says."""
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=30) as page:
        return {kind: float(value) for kind, value in _GAUGES.findall(page.read().decode())}


def await_rest(server: Server, seconds: float) -> dict[str, float]:
    """Wait for it; what is still held when `seconds` are over, {} when nothing is."""
    deadline = time.monotonic() + seconds
    while True:
        found = held(server)
        if len(found) == 3 and not any(found.values()):
            return {}
        if time.monotonic() > deadline:
            return found or {"no gauges on the metrics page": 1.0}
        time.sleep(0.2)
