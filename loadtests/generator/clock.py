"""The clock of one run, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent


class RunClock:
    """Seconds since the run's start, on the monotonic clock; negative before it."""

    def __init__(self, seconds_ahead: float) -> None:
        self.start = time.monotonic() + seconds_ahead

    def now(self) -> float:
        return time.monotonic() - self.start

    def sleep_until(self, moment: float) -> None:
        """Let other greenlets run until then; return at once if the time has passed."""
        left = moment - self.now()
        if left > 0:
            gevent.sleep(left)

    def start_at(self, moment: float, work: Callable[..., Any], *arguments: Any) -> gevent.Greenlet:
        """Start work in its own greenlet at that time.

        A separate timer starts it before everything that is waiting for its turn by then. Tokens of many answers arrive
        at the same time, and after them the work would be late by the time that they all take.
        """
        loop = gevent.get_hub().loop
        timer = loop.timer(max(0.0, moment - self.now()), priority=loop.MAXPRI)
        greenlet = gevent.Greenlet(work, *arguments)

        def begin() -> None:
            timer.close()
            greenlet.switch()

        timer.start(begin, update=True)
        return greenlet
