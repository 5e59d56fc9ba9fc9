"""The answers that a model has not ended yet: found by request id to be stopped, and asked if their client left."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Protocol

from inflight.runtime.background_loop import BackgroundLoop


class ActiveRequest(Protocol):
    """What is needed of an answer here. `handle` is 0 until the engine has taken its request; `key` is its stream's."""

    handle: int
    key: int
    disconnected: bool

    def is_disconnected(self) -> bool:
        """Whether Triton says so; it knows only of requests that came to this model directly."""


class ActiveRequests:
    """Thread-safe. `cancel(handle)` is called by who calls `stop`, and in a thread of its own for clients that left.

    All clients are asked after every `check_seconds`, also those whose requests still wait. Asking one may fail, which
    is told to `report` and does not keep the others from being asked.
    """

    def __init__(self, cancel: Callable[[int], None], check_seconds: float, report: Callable[[str], None]) -> None:
        self._cancel = cancel
        self._check_seconds = check_seconds
        self._lock = threading.Lock()
        self._by_id: defaultdict[str, list[ActiveRequest]] = defaultdict(list)
        self._wake = threading.Event()
        trouble = "a client that left could not be noticed"
        self._thread = BackgroundLoop("open-answers", self._check_all, trouble, report)
        self._thread.start()

    def close(self) -> None:
        self._thread.close(wake=self._wake.set)

    def add(self, request_id: str, answer: ActiveRequest) -> None:
        with self._lock:
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
        """Cancel all answers to the requests of that id, as upstream's `stop` does; an unknown id is no error.

        With `key`, only that stream is cancelled: ids are the clients', who may use one several times.
        """
        for answer in self._find(request_id):
            if key in (0, answer.key):
                self._cancel(answer.handle)

    def check_now(self) -> None:
        """Ask all clients at once: for those that can't call the engine themselves."""
        self._wake.set()

    def _find(self, request_id: str) -> list[ActiveRequest]:
        with self._lock:
            return list(self._by_id.get(request_id, ()))

    def _all(self) -> list[ActiveRequest]:
        with self._lock:
            return [answer for answers in self._by_id.values() for answer in answers]

    def _check_all(self) -> None:
        self._wake.wait(self._check_seconds)
        self._wake.clear()
        for answer in self._all():
            self._thread.attempt(partial(self._check, answer))

    def _check(self, answer: ActiveRequest) -> None:
        if answer.handle and not answer.disconnected and answer.is_disconnected():
            answer.disconnected = True
            self._cancel(answer.handle)
