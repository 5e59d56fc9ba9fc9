"""Watches a process of the load itself: is it quick enough for what is asked of it?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent

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
        self._wall, self._processor = time.monotonic(), time.process_time()

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
        wall, processor = time.monotonic(), time.process_time()
        cores = (processor - self._processor) / max(wall - self._wall, 1e-9)
        self._wall, self._processor = wall, processor
        self._tell(
            {
                "worker": self._worker,
                "t": round(self._share.clock.now(), 3),
                "cpu": round(cores, 4),
                "lag": round(worst, 6),
                "open": self._share.open,
                "sent": self._share.sent,
                "outcomes": dict(self._share.outcomes),
                "exhausted": self._share.exhausted,
            }
        )


def lost_sample(worker: int, t: float) -> dict[str, Any]:
    """What a master tells of a process that it does not hear any more (see `RunDirectory.generator`)."""
    return {"worker": worker, "t": round(t, 3), "cpu": 0.0, "lag": 0.0, "open": 0, "sent": 0, "lost": True}
