"""The requests that wait for a place in an engine."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import count

from inflight.runtime.engine.scheduled_request import ScheduledRequest


class RequestQueue:
    """Those with a higher priority first, those with the same in order of arrival."""

    def __init__(self) -> None:
        self._arrivals = count()
        self._positions: dict[int, tuple[int, int]] = {}
        self._order: list[tuple[int, int, ScheduledRequest]] = []
        """By (-priority, arrival), which no two share, so that entries are never compared."""
        self._deadlines: list[tuple[int, int]] = []
        """(deadline, handle) of those that have one, the earliest first."""
        self._unready: dict[int, ScheduledRequest] = {}
        """By handle, in order of arrival; some may be ready by now."""

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[ScheduledRequest]:
        return (entry for _, _, entry in self._order)

    @property
    def has_deadlines(self) -> bool:
        return bool(self._deadlines)

    @property
    def unready(self) -> list[ScheduledRequest]:
        """Those that wait for the trial of their guide, in order of arrival."""
        return [entry for entry in self._unready.values() if entry.unready]

    def push(self, entry: ScheduledRequest) -> None:
        place = (-entry.request.priority, next(self._arrivals))
        self._positions[entry.handle] = place
        insort(self._order, (*place, entry))
        if entry.request.deadline_ns is not None:
            insort(self._deadlines, (entry.request.deadline_ns, entry.handle))
        if entry.unready:
            self._unready[entry.handle] = entry

    def remove(self, handle: int) -> ScheduledRequest | None:
        """Take a request out, wherever it stands; None where it does not wait."""
        place = self._positions.pop(handle, None)
        if place is None:
            return None
        entry = self._order.pop(bisect_left(self._order, place))[2]
        self._unready.pop(handle, None)
        if entry.request.deadline_ns is not None:
            del self._deadlines[bisect_left(self._deadlines, (entry.request.deadline_ns, handle))]
        return entry

    def pop_expired(self, horizon_ns: int) -> Iterator[ScheduledRequest]:
        """Take out those whose deadline is not after `horizon_ns`, the earliest first."""
        while self._deadlines and self._deadlines[0][0] <= horizon_ns:
            entry = self.remove(self._deadlines[0][1])
            if entry is not None:
                yield entry
