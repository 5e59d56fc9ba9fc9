"""Decides at once whether a request may start, or when its client should come back.

A refused request gets a time to come back, computed from how long answers take. If it comes back then, it goes before
new requests, and waits a moment for a place if there is none. The times are as far apart as places become free for
the share of clients that came back lately, so clients that never come back cost the others nothing.
"""

from __future__ import annotations

import asyncio
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
"""How much later than told a client may come back."""
_MIN_PATIENCE_SECONDS = 2.0
_MAX_PATIENCE_SECONDS = 30.0
"""How long a request that came back waits for a place: as long as two answers take, within these bounds."""
_MAX_WAIT_SECONDS = 3600.0
_MAX_PROMISES = 100_000
_LEAST_SHARE = 0.05
_MARGIN = 1.25
"""Longer than the expected wait, since the rate varies."""


class Admission:
    """Counts places in flight; a request takes one for each of its choices or texts. For one event loop."""

    def __init__(
        self,
        limit: Callable[[], int],
        what: str = "answers",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`what` is what takes a place, for messages."""
        self._limit, self._what, self._clock = limit, what, clock
        self.in_flight = 0
        self.refused = 0
        self._mean_seconds = _FIRST_SECONDS
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._promises: dict[bytes, list[float]] = {}
        self._dues: deque[tuple[float, bytes]] = deque()
        self._last_due = 0.0
        self._return_share = 0.5
        """The share of refused clients that come back in time."""

    async def enter(self, places: int, identity: Callable[[], bytes]) -> None:
        """Take places. Raises ApiError 429 with the time to come back.

        `identity` returns bytes by which the same request is recognized when it is sent again.
        """
        now = self._clock()
        self._expire(now)
        if not self._waiting and self._take(places):
            if self._promises:
                self._claim(_digest(identity), now)
            return
        key = _digest(identity)
        if not (self._claim(key, now) and await self._wait(places)):
            raise self._refuse(key, places)

    def leave(self, places: int, seconds: float | None) -> None:
        """Give back the places of a request whose answers took so long; None: they have not come to their end."""
        self.in_flight -= places
        if seconds is not None:
            self._mean_seconds += _SMOOTHING * (max(seconds, 0.001) - self._mean_seconds)
        self._wake()

    def _take(self, places: int) -> bool:
        if self.in_flight and self.in_flight + places > self._limit():
            return False
        self.in_flight += places
        return True

    async def _wait(self, places: int) -> bool:
        """Wait a moment for places, after those that came before; return whether they are taken."""
        waiter = (places, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        patience = min(max(_MIN_PATIENCE_SECONDS, 2 * self._mean_seconds), _MAX_PATIENCE_SECONDS)
        try:
            await asyncio.wait((waiter[1],), timeout=patience)
        except asyncio.CancelledError:
            if waiter[1].done():
                self.leave(places, None)
            raise
        finally:
            if not waiter[1].done():
                self._waiting.remove(waiter)
                self._wake()
        return waiter[1].done()

    def _wake(self) -> None:
        while self._waiting and self._take(self._waiting[0][0]):
            self._waiting.popleft()[1].set_result(None)

    def _refuse(self, key: bytes, places: int) -> ApiError:
        self.refused += 1
        wait = self._promise(key, places, self._clock())
        seconds = max(1, math.ceil(wait))
        return ApiError(
            f"the server is at its limit of {self._limit()} {self._what} at a time; send the request again in"
            f" {seconds} s",
            "overloaded",
            status=429,
            headers={"retry-after": str(seconds), "retry-after-ms": str(math.ceil(wait * 1000))},
        )

    def _promise(self, key: bytes, places: int, now: float) -> float:
        """Return in how many seconds the request goes before new ones."""
        # Little's law: what is in flight, divided by how long each stays, ends in a second.
        each = _MARGIN * self._mean_seconds / max(1, self._limit())
        due = max(self._last_due, now + each) + places * each * max(_LEAST_SHARE, self._return_share)
        if due - now > _MAX_WAIT_SECONDS or len(self._dues) >= _MAX_PROMISES:
            return min(due - now, _MAX_WAIT_SECONDS)
        self._last_due = due
        self._dues.append((due, key))
        self._promises.setdefault(key, []).append(due)
        return due - now

    def _claim(self, key: bytes, now: float) -> bool:
        """Return whether the request comes back as it was told; its promise is kept then."""
        dues = self._promises.get(key)
        if not dues or dues[0] > now + _EARLY_SECONDS:
            return False
        self._forget(key)
        self._return_share += 0.05 * (1 - self._return_share)
        return True

    def _expire(self, now: float) -> None:
        while self._dues and self._dues[0][0] < now - _GRACE_SECONDS:
            due, key = self._dues.popleft()
            if (dues := self._promises.get(key)) and dues[0] <= due:
                self._forget(key)
                self._return_share -= 0.05 * self._return_share

    def _forget(self, key: bytes) -> None:
        """Take the request's earliest promise off the list."""
        dues = self._promises[key]
        del dues[0]
        if not dues:
            del self._promises[key]


def _digest(identity: Callable[[], bytes]) -> bytes:
    return hashlib.sha256(identity()).digest()[:16]
