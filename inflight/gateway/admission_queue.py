"""Lets requests in one after the other: those that find no room wait for it, and beyond a number they are refused.

Tenants take turns, so that the requests of one don't hold up those of another. If too many wait, the tenant with the
most gives up its last one for a tenant with fewer.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from inflight.openai_api.errors import ApiError

_FIRST_SECONDS = 1.0
"""How long an answer takes, until one has been seen."""
_SMOOTHING = 0.1
_MAX_RETRY_SECONDS = 60.0


@dataclass(eq=False)
class _Waiter:
    places: int
    admitted: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """False: the request gave up its turn for one of another tenant."""


class Admission:
    """Counts places in flight; a request takes one for each of its choices or texts. For one event loop."""

    def __init__(self, limit: Callable[[], int], max_waiting: int, what: str = "answers") -> None:
        """At most `max_waiting` requests wait. `what` is what takes a place, for messages."""
        self._limit, self._max_waiting, self._what = limit, max_waiting, what
        self.in_flight = 0
        self.waiting = 0
        self._mean_seconds = _FIRST_SECONDS
        self._queues: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        """Those that wait, by tenant; the tenant whose turn is next comes first."""

    async def enter(self, places: int, tenant: str = "", seconds: float = math.inf) -> None:
        """Take places, or wait for them for so many seconds. Raises ApiError 429 with the time to come back."""
        if not self.waiting and self._take(places):
            return
        if self.waiting >= self._max_waiting and not self._give_way(tenant):
            raise self._refusal(places, tenant)
        waiter = _Waiter(places)
        self._queues.setdefault(tenant, deque()).append(waiter)
        self.waiting += 1
        try:
            await asyncio.wait((waiter.admitted,), timeout=None if math.isinf(seconds) else seconds)
        except asyncio.CancelledError:
            self._withdraw(waiter, tenant)
            raise
        if not waiter.admitted.done():
            self._withdraw(waiter, tenant)
        elif waiter.admitted.result():
            return
        raise self._refusal(places, tenant)

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

    def _wake(self) -> None:
        while self._queues:
            tenant, queue = next(iter(self._queues.items()))
            if not self._take(queue[0].places):
                return
            waiter = queue.popleft()
            self.waiting -= 1
            self._queues.move_to_end(tenant)
            if not queue:
                del self._queues[tenant]
            waiter.admitted.set_result(True)

    def _withdraw(self, waiter: _Waiter, tenant: str) -> None:
        """Give up a turn, or the places if they were just taken."""
        if not waiter.admitted.done():
            self._remove(waiter, tenant)
            self._wake()
        elif waiter.admitted.result():
            self.leave(waiter.places, None)

    def _remove(self, waiter: _Waiter, tenant: str) -> None:
        queue = self._queues[tenant]
        queue.remove(waiter)
        self.waiting -= 1
        if not queue:
            del self._queues[tenant]

    def _give_way(self, tenant: str) -> bool:
        """End the last request of the tenant with the most, if it has more than this one would; return whether."""
        if not self._queues:
            return False
        most = max(self._queues, key=lambda name: len(self._queues[name]))
        if len(self._queues[most]) <= len(self._queues.get(tenant, ())) + 1:
            return False
        last = self._queues[most][-1]
        self._remove(last, most)
        last.admitted.set_result(False)
        return True

    def _refusal(self, places: int, tenant: str) -> ApiError:
        # Little's law: what is in flight, divided by how long each stays, ends in a second.
        before = sum(each.places for each in self._queues.get(tenant, ())) + places
        turns = max(1, len(self._queues.keys() | {tenant}))
        wait = min(_MAX_RETRY_SECONDS, before * turns * self._mean_seconds / max(1, self._limit()))
        seconds = max(1, math.ceil(wait))
        return ApiError(
            f"the server is at its limit of {self._limit()} {self._what} at a time, and {self.waiting} requests wait;"
            f" send the request again in {seconds} s",
            "overloaded",
            status=429,
            headers={"retry-after": str(seconds), "retry-after-ms": str(max(1000, math.ceil(wait * 1000)))},
        )
