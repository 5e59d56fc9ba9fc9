"""When an engine tells how it stands."""

from __future__ import annotations

import math
import time

from inflight.runtime.messages import EngineStats
from inflight.runtime.stepped import SteppedEngine


class StatsPace:
    """Once in a period while the engine works, and as soon as it comes to rest; nothing that was told already."""

    def __init__(self, engine: SteppedEngine, period_s: float) -> None:
        self._engine = engine
        self._period_s = period_s
        self._told_at = -math.inf
        self._told: EngineStats | None = None

    def due(self) -> EngineStats | None:
        """What is to be told after a turn, if anything."""
        now = time.monotonic()
        if not self._engine.idle and now - self._told_at < self._period_s:
            return None
        stats = self._engine.stats()
        if stats == self._told:
            return None
        self._told_at, self._told = now, stats
        return stats
