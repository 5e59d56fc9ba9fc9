"""An adaptive limit for the requests in flight at one server."""

from __future__ import annotations

import math

from inflight.batch.dispatch.backend import ServerLoad

INITIAL_LIMIT = 16
"""Requests in flight before anything is known about the server."""
MAX_LIMIT = 2048
"""Maximum requests in flight at one server by default: what a connection and this process handle easily."""
_QUEUE_FRACTION = 1 / 8
_MIN_QUEUE = 2
_LONG_QUEUE_FACTOR = 2
"""Factor by which a queue may be longer than needed before the limit is reduced."""
_PAUSE_INITIAL, _PAUSE_MAX = 0.25, 8.0
_MAX_RETRY_AFTER = 300.0
"""Longest pause that a server is granted, in seconds."""
_MIN_GAIN = 1.05
"""Minimum increase in throughput for the hill climb to continue."""
_HOLD_MEASUREMENTS = 8
"""Measurements until the hill climb tries a higher limit again."""


class AdaptiveLimit:
    """A sans-IO controller: it receives server loads, results of requests and times, and computes `limit`.

    For a server that reports its load it keeps a short queue there, an eighth of what runs and at least two, so that
    the engine always has a next request, and requests of other clients do not wait behind many of these. The first
    reading fills the free slots. For a server without load reports it climbs, by half each time, while that increases
    throughput, and tries again now and then. If a server is overloaded, the limit is halved after a pause, and rises
    again only slowly.
    """

    def __init__(self, max_limit: int = MAX_LIMIT, start: int = INITIAL_LIMIT) -> None:
        self._max_limit = max_limit
        self._limit = min(start, max_limit)
        self._ceiling = float(max_limit)
        self._raised_at: float | None = None
        self._pause = 0.0
        self._paused_until = 0.0
        self._load_known = self._underfilled = False
        self._climb = _HillClimb(self._limit)

    @property
    def limit(self) -> int:
        """The maximum requests in flight, at least 1; send nothing new while `paused`."""
        return self._limit

    def paused(self, now: float) -> bool:
        """Return whether the server should receive no new requests now."""
        return now < self._paused_until

    def observe(self, load: ServerLoad, in_flight: int, now: float) -> None:
        """Update the limit from the server's load and the number of our requests in flight."""
        if load.waiting is None or load.running is None:
            self._load_known = False
            return
        self._raise_ceiling(now)
        queue = max(_MIN_QUEUE, math.ceil(load.running * _QUEUE_FRACTION))
        free = 0 if load.max_running is None else max(0, load.max_running - load.running - load.waiting)
        hungry, self._underfilled = self._underfilled, load.waiting < queue
        if not self._load_known and load.max_running is not None:
            self._set(in_flight + free + queue)
        elif self._underfilled:
            # Wait for a second reading: many answers may just have ended, or something else may limit the server.
            if hungry and in_flight >= self._limit * 0.75:
                self._set(self._limit + self._more(load.running, load.waiting, load.max_running, queue, in_flight))
        elif load.waiting > _LONG_QUEUE_FACTOR * queue:
            self._set(max(in_flight - (load.waiting - queue), self._limit // 2))
        self._load_known = True

    def _more(self, running: int, waiting: int, max_running: int | None, queue: int, in_flight: int) -> int:
        """Return how many more requests a server with too short a queue could use."""
        if waiting:
            return queue - waiting
        if max_running is None:
            return queue + in_flight // 4
        on_their_way = max(0, in_flight - running)  # they may be the missing queue
        return max(1, in_flight // 16, max_running - running + queue - on_their_way)

    def load_unknown(self) -> None:
        """The server does not report its load."""
        self._load_known = False

    def request_answered(self, tokens: int, now: float) -> None:
        """Count an answered request with its total tokens."""
        self._pause = 0.0
        if not self._load_known:
            self._raise_ceiling(now)
            limit = self._climb.request_answered(tokens, now)
            if limit is not None:
                self._set(limit)
                self._climb.begin(self._limit)

    def server_overloaded(self, in_flight: int, now: float, retry_after: float = 0.0) -> None:
        """The server refused a request because it is overloaded; several refusals at once count as one.

        `retry_after`: seconds for which it asks to be left alone.
        """
        asked = now + min(retry_after, _MAX_RETRY_AFTER)
        if self.paused(now):
            self._paused_until = max(self._paused_until, asked)
            return
        self._ceiling = max(1.0, min(self._limit, max(in_flight, 1)) * 0.9)
        self._set(self._limit // 2)
        self._climb = _HillClimb(self._limit)
        self._pause = min(max(_PAUSE_INITIAL, self._pause * 2), _PAUSE_MAX)
        self._paused_until = max(now + self._pause, asked)
        self._raised_at = self._paused_until

    def _set(self, limit: int) -> None:
        self._limit = max(1, min(limit, int(self._ceiling), self._max_limit))

    def _raise_ceiling(self, now: float) -> None:
        """Raise the ceiling by 5% per second, by at least one."""
        if self._raised_at is not None and now > self._raised_at and self._ceiling < self._max_limit:
            self._ceiling += (now - self._raised_at) * max(1.0, self._ceiling / 20)
        self._raised_at = now if self._raised_at is None else max(now, self._raised_at)


class _HillClimb:
    """Measures the throughput at a limit over as many answers as the limit, after the earlier requests have ended."""

    def __init__(self, limit: int) -> None:
        self._best = 0.0
        self._best_limit = limit
        self._holds = 0
        self.begin(limit)

    def begin(self, limit: int) -> None:
        self._limit = limit
        self._answers = 0
        self._tokens = 0
        self._since = 0.0

    def request_answered(self, tokens: int, now: float) -> int | None:
        """Return the next limit once this one is measured."""
        self._answers += 1
        if self._answers <= self._limit:
            self._since = now
            return None
        self._tokens += tokens
        if self._answers < 2 * self._limit + 4 or now <= self._since:
            return None
        return self._judge(self._tokens / (now - self._since))

    def _judge(self, rate: float) -> int:
        if self._holds:
            self._holds -= 1
            self._best = rate
            return self._best_limit if self._holds else self._best_limit + max(1, self._best_limit // 8)
        if rate > self._best * _MIN_GAIN:
            self._best, self._best_limit = rate, self._limit
            return self._limit + max(1, self._limit // 2)
        self._holds = _HOLD_MEASUREMENTS
        return self._best_limit
