"""Prefetches the messages of a queue: those without a record become rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from inflight.batch.dispatch.prefetcher import RowPrefetcher
from inflight.batch.job.rows import InputRecord, InvalidRow, Row
from inflight.batch.job.spec import Job
from inflight.batch.queues.source import BATCH, Message, MessageQueue
from inflight.batch.row_formats.interface import RowFormat
from inflight.batch.state.queue_ledger import DEATHS_TOGETHER, QueueLedger

_POLL_SECONDS = 0.05


class MessagePrefetcher(RowPrefetcher):
    """Gives each message to the servers as soon as it is there, and acknowledges again what has its record already."""

    def __init__(self, source: MessageQueue, row_format: RowFormat, ledger: QueueLedger, job: Job) -> None:
        super().__init__(source, row_format, ledger, job)
        self._queue, self._records = source, ledger

    def _windows(self) -> Iterator[list[Row]]:
        for messages in self._queue.messages():
            if self._stopping.is_set():
                return
            known = self._records.known([message.id for message in messages])
            self._queue.settle(known)
            new = [message for message in messages if message.id not in known]
            most = self._job.run_options.max_deliveries
            if trusted := [message for message in new if message.deliveries <= most]:
                self._records.try_apart([message.id for message in trusted] if self._queue.held == 1 else ())
                yield from self._valid([self._row(message) for message in trusted])
            if suspects := [message for message in new if message.deliveries > most]:
                yield from self._tried_apart(suspects)

    def _tried_apart(self, suspects: list[Message]) -> Iterator[list[Row]]:
        """Yield rows while no other message is in flight: workers died with these, and one is to blame. They are tried
        together, then, if workers die, eight at a time, and then alone."""
        left = sorted(suspects, key=self._deaths)
        while True:
            while self._queue.held > len(left):
                if self._stopping.wait(_POLL_SECONDS):
                    return
            if not left:
                return
            deaths = self._deaths(left[0])
            group = [message for message in left[: max(1, BATCH >> 3 * deaths)] if self._deaths(message) == deaths]
            del left[: len(group)]
            if deaths >= DEATHS_TOGETHER + self._job.run_options.max_deliveries:
                yield from self._valid([self._condemned(message) for message in group])
            else:
                self._records.try_apart([message.id for message in group])
                yield from self._valid([self._row(message) for message in group])

    def _deaths(self, message: Message) -> int:
        return self._records.deaths(message.id)

    def _valid(self, rows: list[Row | InvalidRow]) -> Iterator[list[Row]]:
        """Yield the valid rows, if there are any; the others get their result now."""
        for row in rows:
            if isinstance(row, InvalidRow):
                self._ledger.add(self._row_format.format_invalid(row))
        if valid := [row for row in rows if isinstance(row, Row)]:
            yield self._ordered(valid)

    def _row(self, message: Message) -> Row | InvalidRow:
        number = self._number(message)
        row = self._row_format.parse(number, InputRecord(number + 1, message.values, message.id, message.error))
        return replace(row, id=message.id) if row.id is None else row

    def _condemned(self, message: Message) -> InvalidRow:
        number = self._number(message)
        reason = f"workers died {self._job.run_options.max_deliveries} times with this message alone in flight"
        return InvalidRow(number, number + 1, message.id, "row_crashed_worker", reason)

    def _number(self, message: Message) -> int:
        number = self.next_number
        self.next_number += 1
        self._records.add_message(number, message.id, message.body)
        return number
