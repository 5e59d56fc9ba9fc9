"""The open answers of a model: cancelled by request id, and polled for disconnected clients."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Protocol

from inflight.runtime.background_loop import BackgroundLoop


class ActiveRequest(Protocol):
    """The parts of an open answer used here. `handle` is 0 until the engine has its request; `key` is its stream's."""

    handle: int
    key: int
    disconnected: bool

    def is_disconnected(self) -> bool:
        """Return whether Triton reports a disconnect; it reports only those of requests sent to this model directly."""


class ActiveRequests:
    """Thread-safe. The caller's thread runs `cancel(handle)` for `stop`, a separate one for disconnected clients.

    All answers, queued ones included, are polled every `check_seconds`. An exception of one poll goes to `report` and
    does not affect the others.
    """

    def __init__(self, cancel: Callable[[int], None], check_seconds: float, report: Callable[[str], None]) -> None:
        self._cancel = cancel
        self._check_seconds = check_seconds
        self._lock = threading.Lock()
        self._by_id: defaultdict[str, list[ActiveRequest]] = defaultdict(list)
        self._wake = threading.Event()
        trouble = "a disconnected client could not be detected"
        self._thread = BackgroundLoop("active-requests", self._check_all, trouble, report)
        self._thread.start()

    def close(self) -> None:
        self._thread.close(wake=self._wake.set)

    def add(self, request_id: str, answer: ActiveRequest) -> None:
        with self._lock:
            if not self._by_id:
                self._wake.set()
            self._by_id[request_id].append(answer)

    def remove(self, request_id: str, answer: ActiveRequest) -> None:
        """Forget an answer that has ended."""
        with self._lock:
            answers = self._by_id.get(request_id, [])
            if answer in answers:
                answers.remove(answer)
            if not answers:
                self._by_id.pop(request_id, None)

    def stop(self, request_id: str, key: int = 0) -> None:
        """Cancel all answers to the requests of that id, like upstream's `stop`; an unknown id is ignored.

        With `key`, only that stream is cancelled: clients choose ids and may use one several times.
        """
        for answer in self._find(request_id):
            if key in (0, answer.key):
                self._cancel(answer.handle)

    def _find(self, request_id: str) -> list[ActiveRequest]:
        with self._lock:
            return list(self._by_id.get(request_id, ()))

    def _all(self) -> list[ActiveRequest]:
        with self._lock:
            return [answer for answers in self._by_id.values() for answer in answers]

    def _check_all(self) -> None:
        self._wake.wait(self._check_seconds if self._by_id else None)
        self._wake.clear()
        for answer in self._all():
            self._thread.attempt(partial(self._check, answer))

    def _check(self, answer: ActiveRequest) -> None:
        if answer.handle and not answer.disconnected and answer.is_disconnected():
            answer.disconnected = True
            self._cancel(answer.handle)
