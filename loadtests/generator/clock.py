"""The clock of one run, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent


class RunClock:
    """Seconds since the run's start, which may still be ahead: then they are negative. On the monotonic clock."""

    def __init__(self, seconds_ahead: float) -> None:
        self.start = time.monotonic() + seconds_ahead

    def now(self) -> float:
        return time.monotonic() - self.start

    def sleep_until(self, moment: float) -> None:
        """Let the others run until then; not at all for a moment that is over."""
        left = moment - self.now()
        if left > 0:
            gevent.sleep(left)

    def start_at(self, moment: float, work: Callable[..., Any], *arguments: Any) -> gevent.Greenlet:
        """Begin some work in a greenlet of its own, at that moment.

        A timer of its own begins it at once, before all that waits for its turn by then: tokens of many answers come at
        one moment, and behind them it would be late by the time that they all take.
        """
        loop = gevent.get_hub().loop
        timer = loop.timer(max(0.0, moment - self.now()), priority=loop.MAXPRI)
        greenlet = gevent.Greenlet(work, *arguments)

        def begin() -> None:
            timer.close()
            greenlet.switch()

        timer.start(begin, update=True)
        return greenlet
