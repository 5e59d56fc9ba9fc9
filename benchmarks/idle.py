"""The state of a server's requests from its metrics: how many have ended, and whether its engine is idle."""

from __future__ import annotations

import re
import time
import urllib.request

from inflight.deploy.server.server import Server

_GAUGES = re.compile(
    r'^nv_trt_llm_(?:request_metrics|kv_cache_block_metrics)\{[^}]*?_type="(active|waiting|used)"[^}]*\} (\S+)$',
    re.MULTILINE,
)


def held_resources(server: Server) -> dict[str, float]:
    """Return the requests that are `active` or `waiting`, and the KV blocks that are `used`."""
    return {kind: float(value) for kind, value in _GAUGES.findall(_page(server))}


def wait_until_idle(server: Server, seconds: float) -> dict[str, float]:
    """Wait until the server is idle; return what is still held after `seconds`, {} for nothing."""
    deadline = time.monotonic() + seconds
    while True:
        held = held_resources(server)
        if len(held) == 3 and not any(held.values()):
            return {}
        if time.monotonic() > deadline:
            return held or {"no gauges on the metrics page": 1.0}
        time.sleep(0.2)


def _page(server: Server) -> str:
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=30) as page:
        text: str = page.read().decode()
        return text
