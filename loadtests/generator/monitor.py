"""Monitors a process of the load generator: whether it is fast enough for its load."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent

from loadtests.generator.session_shard import SessionShard

_TICK_SECONDS = 0.02
"""Interval between measurements of the event loop's delay."""
_SAMPLE_INTERVAL = 1.0


class GeneratorMonitor:
    """Reports the state of a process once a second (see `RunDirectory`)."""

    def __init__(self, shard: SessionShard, worker: int, sample: Callable[[dict[str, Any]], None]) -> None:
        self._shard = shard
        self._worker = worker
        self._on_sample = sample
        self._wall, self._processor = time.monotonic(), time.process_time()

    def run(self) -> None:
        """Run forever; to be spawned."""
        worst = 0.0
        last_sample = time.monotonic()
        while True:
            before = time.monotonic()
            gevent.sleep(_TICK_SECONDS)
            now = time.monotonic()
            worst = max(worst, now - before - _TICK_SECONDS)
            if now - last_sample >= _SAMPLE_INTERVAL:
                self.sample(worst)
                worst, last_sample = 0.0, now

    def sample(self, worst: float = 0.0) -> None:
        """Report the current state; `worst` is the longest delay since the last report."""
        wall, processor = time.monotonic(), time.process_time()
        cores = (processor - self._processor) / max(wall - self._wall, 1e-9)
        self._wall, self._processor = wall, processor
        self._on_sample(
            {
                "worker": self._worker,
                "t": round(self._shard.clock.now(), 3),
                "cpu": round(cores, 4),
                "lag": round(worst, 6),
                "open": self._shard.in_flight,
                "sent": self._shard.sent,
                "outcomes": dict(self._shard.outcomes),
                "exhausted": self._shard.exhausted,
            }
        )


def lost_sample(worker: int, t: float) -> dict[str, Any]:
    """Return the sample that a master writes for a lost process (see `RunDirectory`)."""
    return {"worker": worker, "t": round(t, 3), "cpu": 0.0, "lag": 0.0, "open": 0, "sent": 0, "lost": True}
