"""The signals of `inflight serve` and `inflight gateway`."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StartInterrupted(BaseException):
    """A signal that arrived before the server was ready. A BaseException, so that no `except Exception` catches it."""


class ServeSignals:
    """Handles SIGTERM and SIGINT in its block: the first signal drains the server, the second one stops it at once."""

    def __init__(self, *, starting: bool = True) -> None:
        self.drain_requested = threading.Event()
        self.force_requested = threading.Event()
        self.starting = starting
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> ServeSignals:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.drain_requested.is_set():
            self.force_requested.set()
        self.drain_requested.set()
        if self.starting:
            self.starting = False
            raise StartInterrupted
