"""A background thread that calls a function until it is closed, and survives the function's exceptions."""

from __future__ import annotations

import threading
from collections.abc import Callable

_RETRY_SECONDS = 0.05
"""Pause after a failed call, so that one that always fails doesn't use a whole core."""


class BackgroundLoop:
    """Calls `body` repeatedly, from `start` to `close`.

    An exception of `body` does not end the loop. `report` gets one line for the first exception of each type, prefixed
    with `error_prefix`.
    """

    def __init__(self, name: str, body: Callable[[], object], error_prefix: str, report: Callable[[str], None]) -> None:
        self._body = body
        self._error_prefix = error_prefix
        self._report = report
        self._reported: set[type[Exception]] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the loop after the current call, without waiting for it."""
        self._closing.set()

    def close(self, wake: Callable[[], object] = lambda: None) -> None:
        """End the loop after the current call; `wake` unblocks that call."""
        self.stop()
        wake()
        self._thread.join(timeout=5)

    def pause(self, seconds: float) -> None:
        """Wait between two calls; `close` interrupts the wait."""
        self._closing.wait(seconds)

    def attempt(self, action: Callable[[], object]) -> bool:
        """Run `action` and report its exception; return whether it succeeded."""
        try:
            action()
        except Exception as error:
            if type(error) not in self._reported:
                self._reported.add(type(error))
                self._report(" ".join(f"{self._error_prefix}: {type(error).__name__}: {error}".split()))
            return False
        return True

    def _run(self) -> None:
        while not self._closing.is_set():
            if not self.attempt(self._body):
                self.pause(_RETRY_SECONDS)
