"""Watches a process of the load itself: is it quick enough for what is asked of it?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import gevent

from loadtests.generator.clock import RunClock
from loadtests.generator.share import Share

_TICK = 0.02
"""How often the event loop's delay is looked at."""
_PERIOD = 1.0


class SelfWatch:
    """Tells once a second how a process stands (see `RunDirectory.generator`)."""

    def __init__(self, share: Share, worker: int, tell: Callable[[dict[str, Any]], None]) -> None:
        self._share = share
        self._worker = worker
        self._tell = tell
        self._samples = self._make(share.clock)
        next(self._samples)

    def run(self) -> None:
        """For ever; to be spawned."""
        worst = 0.0
        told = time.monotonic()
        while True:
            before = time.monotonic()
            gevent.sleep(_TICK)
            now = time.monotonic()
            worst = max(worst, now - before - _TICK)
            if now - told >= _PERIOD:
                self.tell(worst)
                worst, told = 0.0, now

    def tell(self, worst: float = 0.0) -> None:
        """How it stands now; `worst` is the longest delay since the last time."""
        self._tell(next(self._samples) | {"lag": round(worst, 6)})

    def _make(self, clock: RunClock) -> Iterator[dict[str, Any]]:
        wall, processor = time.monotonic(), time.process_time()
        found: dict[str, Any] = {}
        while True:
            yield found
            wall_now, processor_now = time.monotonic(), time.process_time()
            found = {
                "worker": self._worker,
                "t": round(clock.now(), 3),
                "cpu": round((processor_now - processor) / max(wall_now - wall, 1e-9), 4),
                "open": self._share.open,
                "sent": self._share.sent,
                "outcomes": dict(self._share.outcomes),
            }
            wall, processor = wall_now, processor_now


def lost_sample(worker: int, t: float) -> dict[str, Any]:
    """What a master tells of a process that it does not hear any more (see `RunDirectory.generator`)."""
    return {"worker": worker, "t": round(t, 3), "cpu": 0.0, "lag": 0.0, "open": 0, "sent": 0, "lost": True}
