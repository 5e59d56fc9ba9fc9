"""Prefetches rows from the source: reads, parses, deduplicates and orders them, one window at a time."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from inflight.batch.dispatch.prefix_order import order_by_prefix
from inflight.batch.job.rows import InputRecord, InvalidRow, Row, RowStatus
from inflight.batch.job.spec import Job
from inflight.batch.row_formats.interface import RowFormat
from inflight.batch.sources.interface import RowSource
from inflight.batch.state.ledger import Ledger
from inflight.batch.state.retry_ledger import RetryLedger, check_input, matches_by_id

_BLOCK = 256
"""Rows between two checks of whether the job has been stopped."""
_MAX_WINDOW_BYTES = 64 << 20
"""Maximum characters of a window's prompts: a window of longer prompts has fewer rows."""

MAX_OUT_OF_ORDER = 100_000
"""Maximum rows that may be done before an unfinished one; beyond that, reading pauses until that row is done."""
_WAIT_SECONDS = 0.05


class RowPrefetcher:
    """A thread that prefetches rows while those of the previous window are sent: at most two windows are in memory."""

    def __init__(
        self,
        source: RowSource,
        row_format: RowFormat,
        ledger: Ledger,
        job: Job,
        normalize_id: Callable[[str], str] = str,
    ) -> None:
        self._source, self._row_format, self._ledger, self._job = source, row_format, ledger, job
        self._normalize_id = normalize_id
        self._rows: deque[Row] = deque()
        self._arrived = asyncio.Event()
        self._ended = False
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._free_windows = threading.Semaphore(2)
        self._window_sizes = deque[int]()
        self._by_id = isinstance(ledger, RetryLedger) and matches_by_id(source, job.input)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="batch-feed", daemon=True)
        self.next_number = ledger.next
        """The number after the last row that was read."""

    def start(self) -> None:
        """Start the thread; call this in the event loop that takes the rows."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def get(self) -> Row | None:
        """Return the next row; None at the end. Raises what the source raised."""
        while not self._rows:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        row = self._rows.popleft()
        self._window_sizes[0] -= 1
        if not self._window_sizes[0]:
            self._window_sizes.popleft()
            self._free_windows.release()
        return row

    def stop(self) -> None:
        """Return no more rows."""
        self._stopping.set()
        self._free_windows.release()
        self._rows.clear()
        self._ended = True
        self._arrived.set()

    @property
    def exhausted(self) -> bool:
        """Whether every row of the input was returned."""
        return self._ended and not self._stopping.is_set() and not self._rows and self._failure is None

    def join(self) -> None:
        self._thread.join(timeout=5.0)

    def unfinished_rows(self) -> Iterator[Row]:
        """Yield the valid rows without a result, instead of `start`; invalid ones get their result on the way."""
        for block in self._blocks():
            yield from self._without_duplicates(block)

    def _run(self) -> None:
        try:
            for window in self._windows():
                self._free_windows.acquire()
                if self._stopping.is_set():
                    return
                self._call_in_loop(self._deliver, window)
            self._call_in_loop(self._end, None)
        except BaseException as error:  # raised in the event loop by `get`
            self._call_in_loop(self._end, error)

    def _call_in_loop(self, what: Callable[..., None], *values: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(what, *values)
        except RuntimeError:  # the loop has ended, so no rows are needed
            self._stopping.set()

    def _deliver(self, window: Sequence[Row]) -> None:
        if not self._stopping.is_set():
            self._window_sizes.append(len(window))
            self._rows.extend(window)
            self._arrived.set()

    def _end(self, failure: BaseException | None) -> None:
        self._failure = failure
        self._ended = True
        self._arrived.set()

    def _windows(self) -> Iterator[list[Row]]:
        window: list[Row] = []
        size = 0
        for block in self._blocks():
            for row in self._without_duplicates(block):
                window.append(row)
                size += row.request.characters
                if len(window) >= self._job.run_options.window or size >= _MAX_WINDOW_BYTES:
                    yield self._ordered(window)
                    window, size = [], 0
            while self._too_far_ahead and not self._stopping.is_set():
                if window:  # the unfinished row may be among them; a checkpoint may come at any time
                    yield self._ordered(window)
                    window, size = [], 0
                else:
                    self._stopping.wait(_WAIT_SECONDS)
        if window:
            yield self._ordered(window)

    @property
    def _too_far_ahead(self) -> bool:
        """Never true before the first unfinished row has been read: nothing else could end the wait."""
        return self._ledger.out_of_order > MAX_OUT_OF_ORDER and self._ledger.next < self.next_number

    def _blocks(self) -> Iterator[list[Row | InvalidRow]]:
        """Yield unfinished rows in small lists; finished ones are skipped."""
        part = self._job.input.part
        number, after, line = self._ledger.start
        if isinstance(self._ledger, RetryLedger):
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
            self._ledger.record_positions([(place, record.line, record.position) for place, record in numbered])
            made = [self._parse(place, record) for place, record in numbered]
            yield [row for row in made if row is not None]
            self.next_number = number

    def _parse(self, number: int, record: InputRecord) -> Row | InvalidRow | None:
        """Return the row of a record, if it is unfinished."""
        ledger = self._ledger
        if self._by_id and isinstance(ledger, RetryLedger):
            return ledger.match(self._row_format.parse(number, record))
        if ledger.is_done(number):
            return None
        row = self._row_format.parse(number, record)
        return ledger.check_same_row(row) if isinstance(ledger, RetryLedger) else row

    def _without_duplicates(self, block: list[Row | InvalidRow]) -> list[Row]:
        """Return the valid rows; the others get their result now."""
        claims = [  # a dead letter claims none
            (self._normalize_id(row.id), row.number)
            for row in block
            if row.id is not None and not (isinstance(row, InvalidRow) and row.status is RowStatus.DEAD)
        ]
        doubles = self._ledger.claim_ids(claims)
        rows = []
        for row in block:
            checked = duplicate_row(row) if row.number in doubles else row
            if isinstance(checked, InvalidRow):
                self._ledger.add(self._row_format.format_invalid(checked))
            else:
                rows.append(checked)
        return rows

    def _ordered(self, window: list[Row]) -> list[Row]:
        return order_by_prefix(window) if self._job.run_options.order == "prefix" else window


def duplicate_row(row: Row | InvalidRow) -> InvalidRow:
    """Return the dead letter of a row with a duplicate id."""
    reason = f"an earlier row has the id {row.id!r}, or one that the output treats as equal"
    return InvalidRow(row.number, row.line, row.id, "row_duplicate", reason, context=row.context)
