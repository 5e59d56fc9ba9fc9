"""Deadlines on the monotonic clock."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from inflight_client.errors import InflightError
from inflight_client.validation import check_timeout

DEFAULT_QUERY_TIMEOUT = 10.0
"""Default timeout in seconds of calls about the server (health, models, metrics, cancel, detection)."""


class Deadline:
    """A deadline on the monotonic clock, or no deadline; `what` names what must arrive by then, for errors."""

    def __init__(self, seconds: float | None, what: str = "the answer") -> None:
        self.seconds = seconds
        self.what = what
        self.at = None if seconds is None else time.monotonic() + seconds

    @classmethod
    def from_timeout(cls, timeout: float | None, what: str) -> Deadline:
        """Return the deadline of a caller's `timeout`. Raises InflightError `invalid_parameter` for an invalid one."""
        check_timeout("timeout", timeout)
        return cls(timeout, what)

    def left(self) -> float | None:
        """Return the seconds left, at least 0; None without a deadline."""
        return None if self.at is None else max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        return self.at is not None and time.monotonic() >= self.at

    def sooner(self, other: Deadline) -> Deadline:
        """Return the earlier of the two."""
        if other.at is None or (self.at is not None and self.at <= other.at):
            return self
        return other

    def error(self) -> InflightError:
        return InflightError(
            f"{self.what} did not arrive within {self.seconds:g} seconds; raise the timeout", "deadline_exceeded"
        )


NEVER = Deadline(None)


def deadline_ms(seconds_left: float) -> int:
    """Return the value of the input `deadline_ms` of inflight's models, which starts at the request's arrival."""
    return min(max(1, math.ceil(seconds_left * 1000)), 2**31 - 1)


@contextmanager
def acquired(lock: threading.RLock, deadline: Deadline) -> Iterator[None]:
    """Hold a lock. Raises TimeoutError if it is not free by the deadline."""
    if not lock.acquire(timeout=-1 if deadline.at is None else deadline.left() or 0):
        raise TimeoutError
    try:
        yield
    finally:
        lock.release()
