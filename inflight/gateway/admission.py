"""Decides at once whether a request may start, or when its client should come back.

A refused request gets a time to come back, computed from how long answers take, and its place is kept for it
then: as many places as clients have come back for lately. So a client that obeys Retry-After is admitted, and places
for clients that never come back are given to others.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable

from inflight.openai_api.errors import ApiError

_FIRST_SECONDS = 1.0
"""How long an answer takes, until one has been seen."""
_SMOOTHING = 0.1
_EARLY_SECONDS = 0.25
_GRACE_SECONDS = 2.0
"""How long a place is kept after its time."""
_MAX_WAIT_SECONDS = 60.0
_MAX_PROMISES = 10_000
_MARGIN = 1.25
"""Longer than the expected wait, since the rate varies."""


class Admission:
    """Counts places in flight; a request takes one for each of its choices. For one event loop."""

    def __init__(self, limit: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self.in_flight = 0
        self.refused = 0
        self._mean_seconds = _FIRST_SECONDS
        self._promises: dict[bytes, deque[float]] = {}
        self._dues: deque[tuple[float, bytes, int]] = deque()
        self._last_due = 0.0
        self._return_share = 0.5
        """The share of refused clients that come back in time."""

    def enter(self, places: int, identity: Callable[[], bytes]) -> None:
        """Take places. Raises ApiError 429 with the time to come back.

        `identity` returns bytes by which the same request is recognized when it is sent again.
        """
        now = self._clock()
        self._expire(now)
        free = self._limit() - self.in_flight
        key = None
        if self._promises:
            key = hashlib.sha256(identity()).digest()
            if self._claim(key, now):
                if places <= free or self.in_flight == 0:
                    self.in_flight += places
                    return
                raise self._refuse(key, places, now)
        due = sum(size for moment, promised, size in self._dues if moment <= now and promised in self._promises)
        if places <= free - math.ceil(due * self._return_share) or self.in_flight == 0:
            self.in_flight += places
            return
        raise self._refuse(key or hashlib.sha256(identity()).digest(), places, now)

    def leave(self, places: int, seconds: float | None) -> None:
        """Give back the places of a request whose answers took so long; None: they have not come to their end."""
        self.in_flight -= places
        if seconds is None:
            return
        self._mean_seconds += _SMOOTHING * (max(seconds, 0.001) - self._mean_seconds)

    def _refuse(self, key: bytes, places: int, now: float) -> ApiError:
        self.refused += 1
        wait = self._reserve(key, places, now)
        seconds = max(1, math.ceil(wait))
        return ApiError(
            f"the server is at its limit of {self._limit()} answers at a time; send the request again in {seconds} s",
            "overloaded",
            status=429,
            headers={"retry-after": str(seconds), "retry-after-ms": str(math.ceil(wait * 1000))},
        )

    def _reserve(self, key: bytes, places: int, now: float) -> float:
        """Keep a place for the request; return in how many seconds."""
        # Little's law: what is in flight, divided by how long each stays, ends in a second.
        each = _MARGIN * self._mean_seconds / max(1, self._limit())
        due = max(self._last_due, now + each) + places * each
        if due - now > _MAX_WAIT_SECONDS or len(self._dues) >= _MAX_PROMISES:
            return _MAX_WAIT_SECONDS
        self._last_due = due
        self._dues.append((due, key, places))
        self._promises.setdefault(key, deque()).append(due)
        return due - now

    def _claim(self, key: bytes, now: float) -> bool:
        """Return whether a place is kept for the request by now; it is taken off the list then."""
        moments = self._promises.get(key)
        if not moments or moments[0] > now + _EARLY_SECONDS:
            return False
        moments.popleft()
        if not moments:
            del self._promises[key]
        self._return_share += 0.05 * (1 - self._return_share)
        return True

    def _expire(self, now: float) -> None:
        while self._dues and self._dues[0][0] < now - _GRACE_SECONDS:
            due, key, _ = self._dues.popleft()
            moments = self._promises.get(key)
            if moments and moments[0] <= due:
                moments.popleft()
                if not moments:
                    del self._promises[key]
                self._return_share -= 0.05 * self._return_share
