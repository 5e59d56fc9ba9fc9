"""How many requests to have in flight at one server, found out while it runs."""

from __future__ import annotations

import math

from inflight.batch.dispatch.backend import ServerLoad

INITIAL_LIMIT = 16
"""In flight before anything is known of the server."""
MAX_LIMIT = 2048
"""In flight at one server, unless a job says otherwise: what a connection and this process carry easily."""
_QUEUE_FRACTION = 1 / 8
_MIN_QUEUE = 2
_LONG_QUEUE_FACTOR = 2
"""A queue so many times as long as it needs to be is too long."""
_PAUSE_INITIAL, _PAUSE_MAX = 0.25, 8.0
_MIN_GAIN = 1.05
"""A climb goes on while it brings so much more."""
_HOLD_MEASUREMENTS = 8
"""Measurements between two looks at whether more would be better by now."""


class AdaptiveLimit:
    """Sans-IO: it is told what the server says, what came of requests and what time it is; `limit` is its answer.

    Of a server that tells its load it keeps a short queue waiting there, an eighth of what runs and two at the least:
    so the engine always has a next request, and the requests of others do not wait behind a long row of these. At the
    first look it fills the places that are free. Where a server tells nothing it climbs, by half each time, while that
    brings more tokens a second, and looks again now and then. A server that is overloaded gets half, after a pause;
    what was too much is tried again only little by little.
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
        """The most in flight, at least 1; while it is `paused` none should be sent."""
        return self._limit

    def paused(self, now: float) -> bool:
        """Whether the server gets nothing new just now."""
        return now < self._paused_until

    def observe(self, load: ServerLoad, in_flight: int, now: float) -> None:
        """What the server says of itself, with so many of ours in flight."""
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
            # Once is chance: many answers may just have ended. And something else may keep the server from more.
            if hungry and in_flight >= self._limit * 0.75:
                self._set(self._limit + self._more(load.running, load.waiting, load.max_running, queue, in_flight))
        elif load.waiting > _LONG_QUEUE_FACTOR * queue:
            self._set(max(in_flight - (load.waiting - queue), self._limit // 2))
        self._load_known = True

    def _more(self, running: int, waiting: int, max_running: int | None, queue: int, in_flight: int) -> int:
        """Requests that a server could do with that has too few waiting."""
        if waiting:
            return queue - waiting
        if max_running is None:
            return queue + in_flight // 4
        on_their_way = max(0, in_flight - running)  # they may be the queue that is missed
        return max(1, in_flight // 16, max_running - running + queue - on_their_way)

    def load_unknown(self) -> None:
        """The server does not tell its load."""
        self._load_known = False

    def row_answered(self, tokens: int, now: float) -> None:
        """A row has been answered, with so many tokens read and written."""
        self._pause = 0.0
        if not self._load_known:
            self._raise_ceiling(now)
            limit = self._climb.row_answered(tokens, now)
            if limit is not None:
                self._set(limit)
                self._climb.begin(self._limit)

    def server_overloaded(self, in_flight: int, now: float) -> None:
        """The server refused a request because it has too many; several at once count as one."""
        if self.paused(now):
            return
        self._ceiling = max(1.0, min(self._limit, max(in_flight, 1)) * 0.9)
        self._set(self._limit // 2)
        self._climb = _HillClimb(self._limit)
        self._pause = min(max(_PAUSE_INITIAL, self._pause * 2), _PAUSE_MAX)
        self._paused_until = now + self._pause
        self._raised_at = self._paused_until

    def _set(self, limit: int) -> None:
        self._limit = max(1, min(limit, int(self._ceiling), self._max_limit))

    def _raise_ceiling(self, now: float) -> None:
        """By a twentieth a second, and one at the least."""
        if self._raised_at is not None and now > self._raised_at and self._ceiling < self._max_limit:
            self._ceiling += (now - self._raised_at) * max(1.0, self._ceiling / 20)
        self._raised_at = now if self._raised_at is None else max(now, self._raised_at)


class _HillClimb:
    """Measures tokens a second at a limit, over as many answers as it has places, once those begun before are gone."""

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

    def row_answered(self, tokens: int, now: float) -> int | None:
        """The limit to go on with, once this one is measured."""
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
