"""Tells whether the machine itself was late: a thread that sleeps for a moment, again and again, and sees how long."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import numpy as np

_SLEEP_SECONDS = 0.005


class SchedulingDelayMonitor:
    """A context manager that watches while it is open."""

    def __init__(self) -> None:
        self._late: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> SchedulingDelayMonitor:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def delay(self, percentile: float) -> float:
        """Seconds by which the machine let it sleep too long."""
        return float(np.percentile(self._late, percentile))

    def _watch(self) -> None:
        while not self._over.is_set():
            before = time.monotonic()
            time.sleep(_SLEEP_SECONDS)
            self._late.append(time.monotonic() - before - _SLEEP_SECONDS)
