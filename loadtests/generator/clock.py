"""The clock of one run, in one process."""

from __future__ import annotations

import time

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
