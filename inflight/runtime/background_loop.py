"""A thread that many requests rely on, and that goes on whatever one of its turns meets."""

from __future__ import annotations

import threading
from collections.abc import Callable

_RETRY_SECONDS = 0.05
"""After a turn that failed: one that fails at once, each time, must not take a processor."""


class BackgroundLoop:
    """Calls `body` again and again, from `start` to `close`.

    An exception of `body` does not end it. `report` gets the first exception of each type in one line, which begins
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

    def close(self, wake: Callable[[], object] = lambda: None) -> None:
        """End it with the turn that runs; `wake` ends whatever that turn waits for."""
        self._closing.set()
        wake()
        self._thread.join(timeout=5)

    def pause(self, seconds: float) -> None:
        """For a turn that is to come so often: wait, but not beyond `close`."""
        self._closing.wait(seconds)

    def attempt(self, action: Callable[[], object]) -> bool:
        """Do a part of a turn whose failing must not keep the rest from being done; whether it was done."""
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
