"""A bounded sample of inter-token latencies."""

from __future__ import annotations

import time
from collections import deque

STALE_NS = 60_000_000_000
"""An answer without events for this long is not followed any more."""

_NONE = object()
"""Marks a full sample: no stream is followed."""


class InterTokenLatency:
    """Follows one answer from one of its events to the next, then the answer of the next event.

    The events of one step come one after another, so running answers take turns, and one step adds at most one gap.
    `max_samples` limits the gaps between two calls of `drain`: no answer is followed while the sample is full. One
    thread calls `observe`, another `drain`.
    """

    def __init__(self, max_samples: int) -> None:
        self._max_samples = max_samples
        self._samples: deque[float] = deque()
        self._since_ns = 0
        self.tracked: object | None = None
        """The answer to follow; None means any. Other answers' events need not be passed to `observe`."""

    def observe(self, answer: object, tokens: int, ended: bool) -> None:
        """Record an event of `answer` with this many new tokens."""
        now = time.monotonic_ns()
        if self.tracked is None and not ended:
            self._since_ns = now
            self.tracked = answer
        elif self.tracked is answer:
            if tokens:
                self._samples.append((now - self._since_ns) / tokens / 1e9)
            self.tracked = _NONE if len(self._samples) >= self._max_samples else None

    def drain(self) -> list[float]:
        """Return the gaps since the last call, in seconds per token."""
        gaps = [self._samples.popleft() for _ in range(len(self._samples))]
        if self.tracked is _NONE or time.monotonic_ns() - self._since_ns > STALE_NS:
            self.tracked = None
        return gaps
