"""When an engine tells how it stands."""

from __future__ import annotations

import math
import time

from inflight.runtime.engine.scheduler import Scheduler
from inflight.runtime.messages import EngineStats


class StatsReporter:
    """Once in a period while the engine works, and as soon as it comes to rest; nothing that was told already."""

    def __init__(self, engine: Scheduler, period_s: float) -> None:
        self._engine = engine
        self._period_s = period_s
        self._reported_at = -math.inf
        self._reported: EngineStats | None = None

    def due(self) -> EngineStats | None:
        """What is to be told after a turn, if anything."""
        now = time.monotonic()
        if not self._engine.idle and now - self._reported_at < self._period_s:
            return None
        stats = self._engine.stats()
        if stats == self._reported:
            return None
        self._reported_at, self._reported = now, stats
        return stats
