"""A bounded sample of the times between the tokens of answers."""

from __future__ import annotations

import time
from collections import deque

STALE_NS = 60_000_000_000
"""An answer that has said nothing for so long is not waited for any more."""

_NONE = object()
"""The stream followed while the sample is full: none."""


class InterTokenLatency:
    """Follows one answer at a time, from one of its events to the next, then whichever has the next event.

    The answers of one step come one after another, so those that run take turns, and at most one gap a step is taken.
    `max_samples` bounds the gaps between two calls of `drain`: no answer is followed while the sample is full. One
    thread calls `observe`, another `drain`.
    """

    def __init__(self, max_samples: int) -> None:
        self._max_samples = max_samples
        self._samples: deque[float] = deque()
        self._since_ns = 0
        self.tracked: object | None = None
        """None where any answer will do. An event of one that is neither followed nor wanted need not be shown."""

    def observe(self, answer: object, tokens: int, ended: bool) -> None:
        """An event of `answer` with so many new tokens has come."""
        now = time.monotonic_ns()
        if self.tracked is None and not ended:
            self._since_ns = now
            self.tracked = answer
        elif self.tracked is answer:
            if tokens:
                self._samples.append((now - self._since_ns) / tokens / 1e9)
            self.tracked = _NONE if len(self._samples) >= self._max_samples else None

    def drain(self) -> list[float]:
        """The gaps since the last call, in seconds a token."""
        gaps = [self._samples.popleft() for _ in range(len(self._samples))]
        if self.tracked is _NONE or time.monotonic_ns() - self._since_ns > STALE_NS:
            self.tracked = None
        return gaps
