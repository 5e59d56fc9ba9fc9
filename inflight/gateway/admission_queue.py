"""Lets requests in, fairly between tenants: those that find no room wait for it, and beyond a number they are refused.

1. The tenant that has been served the fewest tokens for its weight is next (start-time fair queueing over estimated
   tokens, corrected by those that were used). One that was idle begins where the others are, without what is estimated
   of their open requests: it saves nothing up, and waits for no estimate that is too high.
2. `priority` orders the requests of one tenant among themselves, and never puts them before those of another tenant.
3. A tenant alone may fill the servers' queues (`limit`). Once there are several, no more is sent than runs at once
   (`running`), so that a request that gets in starts with the next step.
4. Of these places, as many are kept free for a tenant as it wanted at a time within the last minute, at most its share
   by weight; if there are more tenants than places, one is kept for all that have nothing in flight. So the flood of
   one moves the others' time to the first token little; the price is what they leave unused.
5. A tenant with nothing in flight needs only room, so that a request of any size gets its turn.
6. A tenant that was silent for a minute is forgotten with its weight; the memory is that of those who were not.
7. If too many wait, the tenant with the most for its weight gives up its last request for a tenant with fewer.
8. The wait is predicted by Little's law: the places before a request, over the tenant's share of those that end.
"""

from __future__ import annotations

import asyncio
import math
import time
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from inflight.openai_api.errors import ApiError

_FIRST_SECONDS = 1.0
"""How long an answer takes, until one has been seen."""
_SMOOTHING = 0.1
_MAX_RETRY_SECONDS = 60.0
_PERIOD_SECONDS = 30.0
"""What a tenant wanted counts in this period and the next one."""


@dataclass(eq=False)
class _Waiter:
    places: int
    tokens: float
    order: tuple[int, int]
    """By priority, then arrival."""
    admitted: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """False: the request gave up its turn for one of another tenant."""


@dataclass(eq=False)
class _Tenant:
    weight: int = 1
    in_flight: int = 0
    waiting: int = 0
    """The places of those in the queue."""
    served: float = 0.0
    """Tokens by weight."""
    pending: float = 0.0
    """The estimated tokens of its requests in flight, which `served` has already."""
    wanted: int = 0
    """The most places at a time, in flight or waited for, in this period; `wanted_before`: in the one before it."""
    wanted_before: int = 0
    queue: list[_Waiter] = field(default_factory=list)

    def note_demand(self) -> None:
        self.wanted = max(self.wanted, self.in_flight + self.waiting)

    def kept(self, share: float) -> int:
        """The places that are kept free for the tenant."""
        return max(0, min(max(self.wanted, self.wanted_before), int(share)) - self.in_flight)

    @property
    def excess(self) -> float:
        return len(self.queue) / self.weight


class Admission:
    """Counts places in flight; a request takes one for each of its choices or texts. For one event loop."""

    def __init__(
        self,
        limit: Callable[[], int],
        max_waiting: int,
        what: str = "answers",
        running: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """At most `max_waiting` requests wait. `what` is what takes a place, for messages.

        `running` is how many places the servers compute at once; None: all.
        """
        self._limit, self._running, self._max_waiting, self._what = limit, running or limit, max_waiting, what
        self._clock = clock
        self.in_flight = 0
        self.waiting = 0
        self._mean_seconds = _FIRST_SECONDS
        self._tenants: dict[str, _Tenant] = {}
        self._served = 0.0
        """The most that a tenant had used when it was let in."""
        self._arrivals = 0
        self._period_ends = clock() + _PERIOD_SECONDS

    async def enter(
        self,
        places: int,
        tenant: str = "",
        seconds: float = math.inf,
        *,
        tokens: float = 1.0,
        weight: int = 1,
        priority: int = 0,
    ) -> None:
        """Take places, or wait for them for so many seconds. Raises ApiError 429 with the time to come back.

        `tokens` is an estimate of the request's. The weight of a tenant is the largest that its requests came with.
        """
        self._begin_period()
        state = self._tenants.setdefault(tenant, _Tenant())
        state.weight = max(state.weight, weight)
        if not state.queue:
            state.served = max(state.served, self._served)
        if not state.queue and self._has_room(places) and self._may_take(state, places):
            self._take(state, places, tokens)
            return
        if self.waiting >= self._max_waiting and not self._give_way(state):
            raise self.refusal(places, tenant)
        self._arrivals += 1
        waiter = _Waiter(places, tokens, (-priority, self._arrivals))
        insort(state.queue, waiter, key=lambda each: each.order)
        self._count_waiting(state, waiter, 1)
        state.note_demand()
        try:
            await asyncio.wait((waiter.admitted,), timeout=None if math.isinf(seconds) else seconds)
        except asyncio.CancelledError:
            self._withdraw(waiter, state)
            raise
        if not waiter.admitted.done():
            self._withdraw(waiter, state)
        elif waiter.admitted.result():
            return
        raise self.refusal(places, tenant)

    def leave(
        self,
        places: int,
        seconds: float | None,
        tenant: str = "",
        unused_tokens: float = 0.0,
        *,
        tokens: float = 1.0,
    ) -> None:
        """Give back the places of a request whose answers took so long; None: they have not come to their end.

        `tokens` is the estimate with which it entered; `unused_tokens`: by how many it took fewer.
        """
        state = self._tenants[tenant]
        self._give_back(state, places, tokens)
        state.served -= unused_tokens / state.weight
        if seconds is not None:
            self._mean_seconds += _SMOOTHING * (max(seconds, 0.001) - self._mean_seconds)
        self._begin_period()
        self._wake()

    def predicted_wait(self, tenant: str | None = None, places: int = 1) -> float:
        """Return how many seconds a request would wait from now on; None: on average over the tenants that wait."""
        if tenant is None:
            before = sum(each.waiting for each in self._tenants.values())
            return before * self._mean_seconds / max(1, self._limit())
        state = self._tenants.get(tenant, _Tenant())
        if not state.queue and self._has_room(places) and self._may_take(state, places):
            return 0.0
        queued = {id(each): each.weight for each in self._tenants.values() if each.queue} | {id(state): state.weight}
        share = state.weight / sum(queued.values())
        return (state.waiting + places) * self._mean_seconds / (max(1, self._limit()) * share)

    @property
    def limit(self) -> int:
        """How many places there are."""
        return self._limit()

    @property
    def rate(self) -> float:
        """How many places are given back in a second while all that may be are taken, by Little's law."""
        return self._usable() / self._mean_seconds

    def within_share(self, tenant: str, places: int = 1) -> bool:
        """Return whether a tenant has no more than its share of the places with these; one that is alone has not."""
        state = self._tenants.get(tenant, _Tenant())
        others = sum(each.weight for each in self._tenants.values() if each is not state)
        limit = min(self._limit(), self._running())
        share = limit * state.weight / (others + state.weight)
        return others > 0 and state.in_flight + state.waiting + places <= share

    def _begin_period(self) -> None:
        """At the end of a period, forget what tenants wanted before it, and tenants without anything."""
        if (now := self._clock()) < self._period_ends:
            return
        silent = now >= self._period_ends + _PERIOD_SECONDS
        self._period_ends = now + _PERIOD_SECONDS
        for name, state in list(self._tenants.items()):
            state.wanted_before, state.wanted = (0 if silent else state.wanted), state.in_flight + state.waiting
            if not state.wanted and not state.wanted_before:
                del self._tenants[name]

    def _has_room(self, places: int) -> bool:
        return not self.in_flight or self.in_flight + places <= self._usable()

    def _usable(self) -> int:
        return self._limit() if len(self._tenants) < 2 else min(self._limit(), self._running())

    def _may_take(self, state: _Tenant, places: int) -> bool:
        """Return whether a tenant leaves the others what is kept for them."""
        if not state.in_flight or len(self._tenants) < 2:
            return True
        limit = min(self._limit(), self._running())
        per_weight = limit / sum(each.weight for each in self._tenants.values())
        others = [each for each in self._tenants.values() if each is not state]
        kept = sum(each.kept(each.weight * per_weight) for each in others)
        if len(others) >= limit and any(not each.in_flight for each in others):
            kept = max(kept, 1)
        return self.in_flight + places + kept <= limit

    def _take(self, state: _Tenant, places: int, tokens: float) -> None:
        state.in_flight += places
        self.in_flight += places
        state.note_demand()
        self._served = max(self._served, state.served - state.pending / state.weight)
        state.served += tokens / state.weight
        state.pending += tokens

    def _give_back(self, state: _Tenant, places: int, tokens: float) -> None:
        state.in_flight -= places
        self.in_flight -= places
        state.pending = state.pending - tokens if state.in_flight else 0.0

    def _wake(self) -> None:
        """Let in those that find room, in turn; a tenant that must leave places to others is passed over."""
        passed: set[int] = set()
        while queued := [each for each in self._tenants.values() if each.queue and id(each) not in passed]:
            state = min(queued, key=lambda each: each.served)
            waiter = state.queue[0]
            if not self._may_take(state, waiter.places):
                passed.add(id(state))
            elif self._has_room(waiter.places):
                self._remove(waiter, state)
                self._take(state, waiter.places, waiter.tokens)
                waiter.admitted.set_result(True)
            else:
                return

    def _withdraw(self, waiter: _Waiter, state: _Tenant) -> None:
        """Give up a turn, or the places if they were just taken."""
        if not waiter.admitted.done():
            self._remove(waiter, state)
        elif waiter.admitted.result():
            self._give_back(state, waiter.places, waiter.tokens)
            state.served -= waiter.tokens / state.weight
        self._wake()

    def _remove(self, waiter: _Waiter, state: _Tenant) -> None:
        state.queue.remove(waiter)
        self._count_waiting(state, waiter, -1)

    def _count_waiting(self, state: _Tenant, waiter: _Waiter, sign: int) -> None:
        state.waiting += sign * waiter.places
        self.waiting += sign

    def _give_way(self, newcomer: _Tenant) -> bool:
        """End the last request of the tenant with the most, if it has more than this one would; return whether."""
        most = max(self._tenants.values(), key=lambda each: each.excess)
        if most.excess <= (len(newcomer.queue) + 1) / newcomer.weight:
            return False
        last = most.queue[-1]
        self._remove(last, most)
        last.admitted.set_result(False)
        return True

    def refusal(self, places: int, tenant: str) -> ApiError:
        """Return the error 429 for a request, with the time to come back."""
        wait = min(_MAX_RETRY_SECONDS, self.predicted_wait(tenant, places))
        seconds = max(1, math.ceil(wait))
        return ApiError(
            f"the server is at its limit of {self._limit()} {self._what} at a time, and {self.waiting} requests wait;"
            f" send the request again in {seconds} s",
            "overloaded",
            status=429,
            headers={"retry-after": str(seconds), "retry-after-ms": str(max(1000, math.ceil(wait * 1000)))},
        )


class Admissions:
    """The admissions of a process, which has its share of the places, and of those that run at once."""

    def __init__(self, workers: int, max_waiting: int, places: Callable[..., int], running: Callable[..., int]) -> None:
        """`places` and `running` return those of all processes for a task, a model, and an address or None."""
        self._workers, self._max_waiting, self._places, self._running = workers, max_waiting, places, running
        self._known: dict[tuple[str, str, str | None], Admission] = {}

    def of(self, task: str, model: str, address: str | None = None) -> Admission:
        """Return the admission of a model at all servers, or at one: many requests for one hold up none for another."""
        key = (task, model, address)
        if key not in self._known:
            what = {"generate": "answers", "transcribe": "blocks of audio"}.get(task, "texts")
            self._known[key] = self.new(partial(self._places, *key), what, partial(self._running, *key))
        return self._known[key]

    def new(self, places: Callable[[], int], what: str, running: Callable[[], int] | None = None) -> Admission:
        running = running or places
        return Admission(
            *(lambda: max(1, places() // self._workers), self._max_waiting // self._workers, what),
            lambda: max(1, running() // self._workers),
        )
