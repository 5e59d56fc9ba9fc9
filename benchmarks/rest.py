"""Where a server's requests stand, by its metrics page: how many have ended, and whether its engine rests."""

from __future__ import annotations

import re
import time
import urllib.request

from inflight.deploy.server import Server

_GAUGES = re.compile(
    r'^nv_trt_llm_(?:request_metrics|kv_cache_block_metrics)\{[^}]*?_type="(active|waiting|used)"[^}]*\} (\S+)$',
    re.MULTILINE,
)
_ENDS = re.compile(r"^inflight_requests_total\{[^}]*\} (\S+)$", re.MULTILINE)
_PATIENCE_SECONDS = 300.0


def held(server: Server) -> dict[str, float]:
    """Requests that are `active` or `waiting`, and KV blocks that are `used`, as the metrics page says."""
    return {kind: float(value) for kind, value in _GAUGES.findall(_page(server))}


def ends(server: Server) -> int:
    """Requests that have come to an end, whichever."""
    return sum(int(float(value)) for value in _ENDS.findall(_page(server)))


def await_ends(server: Server, count: int) -> None:
    """Wait until so many have; TimeoutError says how many did within some minutes."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (found := ends(server)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{found} of {count} requests have ended within {_PATIENCE_SECONDS:.0f} s")
        time.sleep(0.2)


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


def _page(server: Server) -> str:
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=30) as page:
        text: str = page.read().decode()
        return text
