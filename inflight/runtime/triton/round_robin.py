"""Runs long jobs in a separate thread, one piece of each job in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from inflight.runtime.background_loop import BackgroundLoop
from inflight.runtime.engine.queue_full import queue_full_error


class RoundRobinExecutor:
    """Advances each job by one piece, then the next job, until all are done.

    A job is an iterator that does a piece of its work at each step. An exception ends its job and goes to `report`.
    """

    def __init__(self, limit: int, report: Callable[[str], None]) -> None:
        """`limit` is the total size of all jobs in progress; a single job may exceed it."""
        self._limit = limit
        self._held = 0
        self._lock = threading.Lock()
        self._waiting: SimpleQueue[tuple[Iterator[object], int]] = SimpleQueue()
        self._thread = BackgroundLoop("round-robin", self._run_next, "a long request failed", report)
        self._thread.start()

    def submit(self, job: Iterator[object], size: int) -> None:
        """Add a job of this size. Raises RequestError (`overloaded`) if the total would exceed the limit."""
        with self._lock:
            if self._held and self._held + size > self._limit:
                raise queue_full_error(self._limit, "long requests, in bytes")
            self._held += size
        self._waiting.put((job, size))

    def close(self) -> None:
        self._thread.close(wake=lambda: self._waiting.put((iter(()), 0)))

    def _run_next(self) -> None:
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
