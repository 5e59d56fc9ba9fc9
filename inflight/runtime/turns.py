"""Work that takes long, done beside what is short: a piece of each job in turn, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from inflight.runtime.lasting_thread import LastingThread
from inflight.runtime.places import too_many


class Turns:
    """Advances each job by one piece, then the next job, until all are done.

    A job is an iterator that does a piece of its work at each step. An exception ends its job and goes to `report`.
    """

    def __init__(self, most: int, report: Callable[[str], None]) -> None:
        """`most` is how much all jobs under way may hold together; one alone may hold more."""
        self._most = most
        self._held = 0
        self._lock = threading.Lock()
        self._waiting: SimpleQueue[tuple[Iterator[object], int]] = SimpleQueue()
        self._thread = LastingThread("turns", self._turn, "a long request failed", report)
        self._thread.start()

    def add(self, job: Iterator[object], size: int) -> None:
        """`size` is how much it holds. RequestError (`overloaded`) where all together would hold too much."""
        with self._lock:
            if self._held and self._held + size > self._most:
                raise too_many(self._most, "long requests, in bytes")
            self._held += size
        self._waiting.put((job, size))

    def close(self) -> None:
        self._thread.close(wake=lambda: self._waiting.put((iter(()), 0)))

    def _turn(self) -> None:
        job, size = self._waiting.get()
        try:
            next(job)
        except Exception as error:
            with self._lock:
                self._held -= size
            if not isinstance(error, StopIteration):
                raise
        else:
            self._waiting.put((job, size))
