"""How long an engine's latest steps took."""

from __future__ import annotations

from collections import deque

RECENT_NS = 1_000_000_000
"""An engine that has rested for so long may be faster than it was: one that is late by its last steps is tried."""


class StepTimes:
    """Remembers the latest 64 steps; moments are those of the machine's monotonic clock, all in nanoseconds."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int]] = deque(maxlen=64)

    def add(self, started_ns: int, ended_ns: int) -> None:
        self._steps.append((ended_ns, ended_ns - started_ns))

    def shortest(self, now_ns: int) -> int:
        """The shortest step that ended within the last second; 0 where there was none."""
        return min((took for ended, took in self._steps if now_ns - ended < RECENT_NS), default=0)
