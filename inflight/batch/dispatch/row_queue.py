"""The queue of rows for all servers: ready rows, rows to be retried, and their numbers of attempts."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from inflight_client import InflightError

from inflight.batch.dispatch.poison_rows import PoisonRowFinder
from inflight.batch.job.rows import ClassifyRequest, EmbedRequest, Row, RowAnswer, Tokens, TranslateRequest, add_tokens

MAX_READY = 256
"""Rows that are prefetched before a server has room for them."""
MAX_REQUEST_CHARACTERS = 65_536
"""Characters of the texts of several rows that are sent as one request."""

_WITH_TEXTS = EmbedRequest | ClassifyRequest | TranslateRequest
"""Requests of which several may be sent as one."""

OnRowDone = Callable[[Row, RowAnswer | InflightError, int], None]
"""A callback with a row, its result, and its number of attempts."""


class Feed(Protocol):
    """The source of a queue's rows."""

    async def get(self) -> Row | None:
        """Wait for the next row and return it; None at the end."""


class RowQueue:
    """All rows between the feed and their results. Used in one event loop.

    `on_idle` is called once nothing is left to do: all rows are done, or `stop` was called and none is in flight.
    """

    def __init__(
        self, feed: Feed, on_row_done: OnRowDone, poison_rows: PoisonRowFinder, on_idle: Callable[[], None]
    ) -> None:
        self.stopped = False
        self.in_flight = 0
        """Rows in flight at all servers."""
        self._feed = feed
        self._on_row_done = on_row_done
        self._poison_rows = poison_rows
        self._on_idle = on_idle
        self._ready: deque[Row] = deque()
        self._later: list[tuple[float, int, Row]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._space: asyncio.Future[None] | None = None
        self._sent: dict[int, int] = {}
        self._in_flight_again: set[int] = set()
        self._failures: dict[int, int] = {}
        self._spent: dict[int, Tokens] = {}
        self._alone: set[int] = set()
        """Numbers of rows that are sent in requests of their own."""
        self._open = 0
        self._feed_ended = False

    async def read(self) -> None:
        """Read rows from the feed to its end. Raises what the feed raises."""
        crash_counts = self._poison_rows.crash_counts
        while not self.stopped and (row := await self._feed.get()) is not None:
            self._open += 1
            if row.number in crash_counts:
                self._poison_rows.add_known_suspect(row)
                continue
            self._ready.append(row)
            if self._waiting:
                self._wake()
            if len(self._ready) >= MAX_READY:
                self._space = asyncio.get_running_loop().create_future()
                await self._space
        self._feed_ended = True
        self._check()

    async def get(self) -> Row | None:
        """Wait for the next row for a server; None at the end."""
        while not self._ready:
            if self.stopped or (self._feed_ended and not self._open):
                return None
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            except asyncio.CancelledError:
                if not future.cancelled():
                    self._wake()  # another waiter takes the row that this one was woken for
                raise
        return None if self.stopped else self._take()

    def with_more(self, row: Row, max_texts: int) -> list[Row]:
        """Return the row, and rows that are ready to be sent with it in one request of at most so many texts."""
        return self._join(row, self._ready, self._take, max_texts)

    def requests_of(self, rows: Sequence[Row], max_texts: int) -> list[list[Row]]:
        """Return the rows by request."""
        left = deque(rows)
        requests = []
        while left:
            requests.append(self._join(left.popleft(), left, left.popleft, max_texts))
        return requests

    def _join(self, first: Row, left: deque[Row], take: Callable[[], Row], max_texts: int) -> list[Row]:
        rows, texts, characters = [first], _texts(first), first.request.characters
        while left and self._may_join(first, left[0]):
            texts += _texts(left[0])
            characters += left[0].request.characters
            if texts > max_texts or characters > MAX_REQUEST_CHARACTERS:
                break
            rows.append(take())
        return rows

    def _may_join(self, first: Row, row: Row) -> bool:
        """Return whether the rows can be in one request."""
        request, other = first.request, row.request
        if not isinstance(request, _WITH_TEXTS) or type(request) is not type(other):
            return False
        together = first.number not in self._alone and row.number not in self._alone
        return together and request.shared == other.shared

    def _take(self) -> Row:
        row = self._ready.popleft()
        if self._space is not None and len(self._ready) <= MAX_READY // 2:
            if not self._space.done():
                self._space.set_result(None)
            self._space = None
        return row

    def send_alone(self, row: Row) -> None:
        """Send a row apart from others from now on: a request with it and others failed as a whole."""
        self._alone.add(row.number)

    def put_back(self, row: Row) -> None:
        """Return a row that was not sent."""
        self._ready.appendleft(row)
        self._wake()

    def retry_later(self, row: Row, delay: float = 0.0) -> None:
        """Send a row again after a delay in seconds."""
        self.count_attempt(row)
        if not delay:
            self.put_back(row)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + delay
        heapq.heappush(self._later, (due, row.number, row))
        if self._later[0][0] == due:
            self._schedule(due)

    def count_attempt(self, row: Row) -> None:
        """Count an attempt of a row that is now a suspect."""
        self._sent[row.number] = self._sent.get(row.number, 0) + 1

    def next_attempt(self, row: Row) -> int:
        """Return the number of the next attempt of a row, from 1."""
        return self._sent.get(row.number, 0) + 1

    def count_failure(self, row: Row) -> int:
        """Return how often a row has failed by itself, including this time."""
        self._failures[row.number] = failures = self._failures.get(row.number, 0) + 1
        return failures

    def add_spent(self, row: Row, tokens: Tokens) -> None:
        """Count the tokens of an answer that is not kept."""
        self._spent[row.number] = add_tokens(self._spent.get(row.number, (0, 0)), tokens)

    def finish(self, row: Row, result: RowAnswer | InflightError, sent: int = 1) -> None:
        """Finish a row with an answer or an error, after `sent` more attempts."""
        if row.number in self._spent:
            row = replace(row, spent=add_tokens(row.spent, self._spent.pop(row.number)))
        if self._sent:
            sent += self._sent.pop(row.number, 0)
            self._failures.pop(row.number, None)
            self._alone.discard(row.number)
        self._on_row_done(row, result, sent)
        self._open -= 1
        self._check()

    def mark_in_flight(self, row: Row) -> None:
        """Mark a row as in flight."""
        self.in_flight += 1
        if row.number in self._sent:
            self._in_flight_again.add(row.number)

    def mark_ended(self, row: Row) -> None:
        """Mark a row as no longer in flight."""
        self.in_flight -= 1
        self._in_flight_again.discard(row.number)
        if self.stopped and not self.in_flight:
            self._on_idle()

    def stop(self) -> None:
        """Return no more rows; those that are not in flight are left as they are."""
        self.stopped = True
        self.close()
        if not self.in_flight:
            self._on_idle()

    def close(self) -> None:
        """Stop waiting."""
        if self._timer is not None:
            self._timer.cancel()
        if self._space is not None and not self._space.done():
            self._space.set_result(None)
        self._wake_all()

    @property
    def starved(self) -> bool:
        """Whether the feed has no row that could be sent."""
        return not self._open

    @property
    def pending_retries(self) -> int:
        """Rows that failed, are not in flight, and will be sent again."""
        return len(self._sent) - len(self._in_flight_again)

    def _check(self) -> None:
        if self._feed_ended and not self._open:
            self._wake_all()
            self._on_idle()

    def _schedule(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._release_due)

    def _release_due(self) -> None:
        """Move rows whose delay is over to the front."""
        now = asyncio.get_running_loop().time()
        self._timer = None
        while self._later and self._later[0][0] <= now + 0.001:
            self.put_back(heapq.heappop(self._later)[2])
        if self._later:
            self._schedule(self._later[0][0])

    def _wake(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return

    def _wake_all(self) -> None:
        while self._waiting:
            self._wake()


def _texts(row: Row) -> int:
    request = row.request
    return len(request.texts) if isinstance(request, _WITH_TEXTS) else 1
