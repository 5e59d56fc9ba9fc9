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
_ENDED = re.compile(r"^inflight_requests_total\{[^}]*\} (\S+)$", re.MULTILINE)
_TIMEOUT = 300.0


def held_resources(server: Server) -> dict[str, float]:
    """Return the requests that are `active` or `waiting`, and the KV blocks that are `used`."""
    return {kind: float(value) for kind, value in _GAUGES.findall(_page(server))}


def ended_requests(server: Server) -> int:
    """Return the number of requests that have ended, in any way."""
    return sum(int(float(value)) for value in _ENDED.findall(_page(server)))


def wait_for_ended(server: Server, count: int) -> None:
    """Wait until this many requests have ended; raises TimeoutError with the number that did within some minutes."""
    deadline = time.monotonic() + _TIMEOUT
    while (ended := ended_requests(server)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{ended} of {count} requests have ended within {_TIMEOUT:.0f} s")
        time.sleep(0.2)


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
