"""SIGTERM and its like: the first asks a job to drain, the second to stop at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = "interrupted by a signal"
CANCELLED = "by `inflight batch cancel`"
"""Why a job ends early, behind the name of its state."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopEarlyError(BaseException):
    """A signal that came before rows were asked. Like KeyboardInterrupt, nothing on its way takes it for an error."""


class StopSignals:
    """Counts what came. `tell` is called with that count, in the main thread, once there is somebody to be told."""

    def __init__(self) -> None:
        self.count = 0
        self.interrupted = False
        self._on_signal: Callable[[int], None] | None = None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Only the main thread can; elsewhere signals are whoever's they are. What is ignored stays so, as `nohup` and
        a shell's background want it.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._handle) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def handled_by(self, on_signal: Callable[[int], None]) -> Iterator[None]:
        """Tell of signals instead of breaking off; also of one that came before."""
        self._on_signal = on_signal
        try:
            if self.count:
                on_signal(self.count)
            yield
        finally:
            self._on_signal = None

    def request_stop(self) -> bool:
        """As a signal does, but from any thread, and breaking nothing off: whether anybody was told already."""
        self.count += 1
        tell = self._on_signal
        if tell is not None:
            tell(self.count)
        return tell is not None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        if not self.request_stop() and self.count == 1:
            raise StopEarlyError
