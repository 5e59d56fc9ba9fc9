"""SIGTERM, SIGHUP and SIGINT: the first one drains a job, the second one stops it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = "interrupted by a signal"
CANCELLED = "by `inflight batch cancel`"
"""Why a job ended early, after the name of its state."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def stopping_message(seconds: float) -> str:
    return f"Stopping: requests in flight have {seconds:g} s to finish. Interrupt again to stop at once."


class StopEarlyError(BaseException):
    """A signal before any row was sent, or after the last one. A BaseException, so that no `except Exception` catches
    it."""


class StopSignals:
    """Counts signals. Once a handler is set, it is called with the count, in the main thread."""

    def __init__(self) -> None:
        self.count = 0
        self.interrupted = False
        self._on_signal: Callable[[int], None] | None = None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch signals. Only possible in the main thread; elsewhere handlers are unchanged. Ignored signals stay
        ignored, as `nohup` and background shells expect.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def handled_by(self, on_signal: Callable[[int], None]) -> Iterator[None]:
        """Call the handler for signals instead of raising; also for one that came before."""
        self._on_signal = on_signal
        try:
            if self.count:
                on_signal(self.count)
            yield
        finally:
            self._on_signal = None

    def request_stop(self) -> bool:
        """Act as a signal does, from any thread and without raising; return whether a handler was called."""
        self.count += 1
        on_signal = self._on_signal
        if on_signal is not None:
            on_signal(self.count)
        return on_signal is not None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        if not self.request_stop() and self.count == 1:
            raise StopEarlyError
