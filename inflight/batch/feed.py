"""Brings rows from the source to the pool: read, made, looked at for doubles, ordered, a window at a time."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from inflight.batch.flow.order import best_order
from inflight.batch.forms.form import Form
from inflight.batch.job import Job
from inflight.batch.row import Fault, Kind, Record, Row
from inflight.batch.sources.source import Source
from inflight.batch.state.ledger import Ledger
from inflight.batch.state.retrial import Retrial, by_id, check_input

_BLOCK = 256
"""Rows between two looks at whether the job has been stopped."""
_MOST_BYTES = 64 << 20
"""Of the prompts of a window: one with longer prompts has fewer rows."""

MOST_AHEAD = 100_000
"""Rows that are done while one before them is not: so many wait in the state, and then for that one nothing is read."""
_WAIT_SECONDS = 0.05


class Feed:
    """A thread reads ahead while the rows of the window before are asked: two windows at most are in memory."""

    def __init__(
        self, source: Source, form: Form, ledger: Ledger, job: Job, one_key: Callable[[str], str] = str
    ) -> None:
        self._source, self._form, self._ledger, self._job = source, form, ledger, job
        self._one_key = one_key
        self._rows: deque[Row] = deque()
        self._came = asyncio.Event()
        self._over = False
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._room = threading.Semaphore(2)
        self._left = deque[int]()
        self._by_id = isinstance(ledger, Retrial) and by_id(source, job.input)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="batch-feed", daemon=True)
        self.read_to = ledger.next
        """The number of the row behind the last one read."""

    def start(self) -> None:
        """To be called in the event loop that takes the rows."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def take(self) -> Row | None:
        """The next row; None where there is none any more. Raises what the source raised."""
        while not self._rows:
            if self._failure is not None:
                raise self._failure
            if self._over:
                return None
            self._came.clear()
            await self._came.wait()
        row = self._rows.popleft()
        self._left[0] -= 1
        if not self._left[0]:
            self._left.popleft()
            self._room.release()
        return row

    def stop(self) -> None:
        """Give no more rows."""
        self._stopping.set()
        self._room.release()
        self._rows.clear()
        self._over = True
        self._came.set()

    @property
    def exhausted(self) -> bool:
        """Whether every row of the input was given away."""
        return self._over and not self._stopping.is_set() and not self._rows and self._failure is None

    def join(self) -> None:
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        try:
            for window in self._windows():
                self._room.acquire()
                if self._stopping.is_set():
                    return
                self._tell(self._give, window)
            self._tell(self._end, None)
        except BaseException as error:  # goes to whoever takes rows
            self._tell(self._end, error)

    def _tell(self, what: Callable[..., None], *values: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(what, *values)
        except RuntimeError:  # the loop has ended: nobody takes rows any more
            self._stopping.set()

    def _give(self, window: Sequence[Row]) -> None:
        if not self._stopping.is_set():
            self._left.append(len(window))
            self._rows.extend(window)
            self._came.set()

    def _end(self, failure: BaseException | None) -> None:
        self._failure = failure
        self._over = True
        self._came.set()

    def _windows(self) -> Iterator[list[Row]]:
        window: list[Row] = []
        size = 0
        for block in self._blocks():
            for row in self._claimed(block):
                window.append(row)
                size += _size(row)
                if len(window) >= self._job.running.window or size >= _MOST_BYTES:
                    yield self._ordered(window)
                    window, size = [], 0
            if self._far_ahead and window:  # the row that all wait for may be among them
                yield self._ordered(window)
                window, size = [], 0
            while self._far_ahead and not self._stopping.wait(_WAIT_SECONDS):
                pass
        if window:
            yield self._ordered(window)

    @property
    def _far_ahead(self) -> bool:
        """Never before the first row that isn't done has been read: nothing else could end the wait."""
        return self._ledger.ahead > MOST_AHEAD and self._ledger.next < self.read_to

    def _blocks(self) -> Iterator[list[Row | Fault]]:
        """Rows that want an outcome, some at a time; those that have one are passed over."""
        part = self._job.input.part
        number, after, line = self._ledger.start
        if isinstance(self._ledger, Retrial):
            check_input(self._source, self._job.input)
        if after is None:
            number, after, line = part.first, part.after, part.line
        limits = [limit for limit in (self._job.input.limit, part.rows) if limit is not None and not self._by_id]
        left = max(0, part.first + min(limits) - number) if limits else None
        records = islice(self._source.read(after, line), left)
        while block := list(islice(records, _BLOCK)):
            if self._stopping.is_set():
                return
            numbered = list(enumerate(block, number))
            number += len(block)
            self._ledger.mark([(one, record.line, record.position) for one, record in numbered])
            made = [self._made(one, record) for one, record in numbered]
            yield [row for row in made if row is not None]
            self.read_to = number

    def _made(self, number: int, record: Record) -> Row | Fault | None:
        """The row that a record is, if it wants an outcome."""
        ledger = self._ledger
        if self._by_id and isinstance(ledger, Retrial):
            return ledger.find(self._form.row(number, record))
        if ledger.done(number):
            return None
        row = self._form.row(number, record)
        return ledger.check(row) if isinstance(ledger, Retrial) else row

    def _claimed(self, block: list[Row | Fault]) -> list[Row]:
        """The rows that can be asked; the others have their outcome now."""
        claims = [(self._one_key(one.id), one.number) for one in block if one.id is not None and _claims(one)]
        doubles = self._ledger.claim(claims)
        rows = []
        for one in block:
            if one.number in doubles:
                self._ledger.add(self._form.faulty(double(one)))
            elif isinstance(one, Fault):
                self._ledger.add(self._form.faulty(one))
            else:
                rows.append(one)
        return rows

    def _ordered(self, window: list[Row]) -> list[Row]:
        return best_order(window) if self._job.running.order == "best" else window


def _claims(one: Row | Fault) -> bool:
    """Whether a row has its id for itself: a dead letter is nobody's record."""
    return isinstance(one, Row) or one.kind is not Kind.DEAD


def double(row: Row | Fault) -> Fault:
    """The dead letter of a row whose id an earlier one has."""
    said = f"an earlier row has the id {row.id!r}, or one that the output takes for the same"
    return Fault(row.number, row.line, row.id, "row_duplicate", said, about=row.about)


def _size(row: Row) -> int:
    prompt = row.ask.prompt
    return len(prompt) if isinstance(prompt, str) else sum(len(str(message)) for message in prompt)
