"""Retries failed rows: selects them, and merges their new lines with the old ones."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any

import orjson

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import InvalidRow, Position, Row, RowResult, RowStatus
from inflight.batch.job.spec import InputSpec
from inflight.batch.sources.interface import RowSource
from inflight.batch.state.ledger import Ledger
from inflight.batch.state.line_file import LineFile, install_merged, merge_path, read_lines
from inflight.common.atomic_files import sync

NOT_RETRYABLE = ("row_duplicate",)
"""Codes of rows that cannot be retried, since they would be a second record of their id."""


def select_failed_rows(ledger: Ledger, codes: Sequence[str]) -> int:
    """Mark the failed rows with these codes (without codes: all that were sent); return their number."""
    chosen = (
        "code IN (SELECT value FROM json_each(?))" if codes else "(status = 'error' OR code = 'row_crashed_engine')"
    )
    values = (orjson.dumps(list(codes)).decode(),) if codes else ()
    barred = ", ".join(f"'{code}'" for code in NOT_RETRYABLE)
    sql = f"INSERT OR IGNORE INTO retried(number) SELECT number FROM failures WHERE {chosen} AND code NOT IN ({barred})"
    selected = ledger.database.execute(sql, values).rowcount
    if selected:
        ledger.database.put("finished", False)
        ledger.remember("retrying", True)
    return selected


class RetryLedger(Ledger):
    """The ledger of a job whose selected rows are retried. Their results wait in the state for `merge`.

    The input may have changed: a query may no longer return rows that the job has filled. `match` and `check_same_row`
    ensure that no other row is sent in a row's place.
    """

    def __init__(self, directory: JobDirectory, first: int = 0) -> None:
        super().__init__(directory, first)
        self._first = first
        query = "SELECT number, code FROM failures WHERE number IN (SELECT number FROM retried WHERE status IS NULL)"
        self._wanted: dict[int, str] = dict(self.database.execute(query).fetchall())

    @property
    def start(self) -> tuple[int, Position | None, int]:
        return self._first, None, 0

    @property
    def remaining(self) -> int:
        """The number of rows without a new result."""
        return len(self._wanted)

    def is_done(self, number: int) -> bool:
        return number not in self._wanted

    def match(self, row: Row | InvalidRow) -> Row | InvalidRow | None:
        """Return the row with the number that it had when it failed, wherever it is now; None if it is not selected."""
        number = self._unmatched.pop(row.id, None) if row.id is not None else row.number
        if number is None or number not in self._wanted:
            return None
        id, line = self._failed(number)
        return replace(row, number=number, line=line) if id == row.id else None

    def check_same_row(self, row: Row | InvalidRow) -> Row | InvalidRow:
        """Check a row that is selected by its number. Raises BatchError `input_changed` if another row has that number
        now."""
        id, line = self._failed(row.number)
        if id != row.id:
            raise BatchError(
                f"line {line} of the input has the id {row.id!r}, but had {id!r} when the job started; restore the "
                f"input and resume the job, or start a new one",
                "input_changed",
            )
        return row

    def end_of_input(self, rows: int) -> None:
        """Raises BatchError `input_changed` for selected rows that are missing; they are no longer selected."""
        with self._writing():
            if not self._wanted:
                return
            examples = ", ".join(repr(self._failed(number)[0]) for number in islice(self._wanted, 3))
            count = len(self._wanted)
            self.database.execute("DELETE FROM retried WHERE status IS NULL")
            self.database.commit()
            self._wanted.clear()
        raise BatchError(
            f"{count:,} of the rows to retry are no longer in the input ({examples}{', …' * (count > 3)}); they keep "
            f"their records: resume the job to complete the others",
            "input_changed",
        )

    def claim_ids(self, rows: Sequence[tuple[str, int]]) -> set[int]:
        return set()

    def record_positions(self, positions: Iterable[tuple[int, int, Position]]) -> None:
        """Keep the recorded end of the input."""

    def recover(self) -> None:
        """Check that the files have only the old lines; other lines have no place among the new ones."""
        with self._writing():
            self._finish_merge()
            for file in self._files.values():
                if file.uncommitted_bytes:
                    raise BatchError(
                        f"{file.path} has {file.uncommitted_bytes:,} bytes more than the job has written; remove them "
                        f"and resume the job",
                        "job_damaged",
                    )

    def merge(self) -> None:
        """Insert the new lines: write complete new files beside the old ones, commit once, then rename them.

        Raises BatchError. If it is interrupted, either nothing has changed, or the next start completes it.
        """
        with self._writing():
            lengths = {status: self._rewrite(status, lines) for status, lines in self._merged()}
            self._replace_failures()
            checkpoint = self.database.get("checkpoint")
            self.database.put("checkpoint", {**checkpoint, "counts": self.counts.as_dict(), "lengths": lengths})
            self.database.put("renames", True)
            for name, value in (("retrying", False), ("finished", False), ("delivered", 0)):
                self.database.put(name, value)
            self.database.commit()
            install_merged([self._directory.result_file(status) for status in RowStatus])
            for status, length in lengths.items():
                self._files[status].close()
                self._files[status] = LineFile(self._directory.result_file(status), length)
            self.remember("renames", False)

    def _apply(self, results: list[RowResult]) -> list[RowResult]:
        for row in results:
            if (before := self._wanted.pop(row.number, None)) is None:
                continue
            self._uncount(row, before)
            self.counts.add(row)
            self.database.execute(
                "INSERT OR REPLACE INTO retried VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (row.number, row.line, row.id, row.status, row.text, row.code, row.message, *row.tokens, row.attempts),
            )
        self._clear_suspects(results)
        return []

    def _write_ready_lines(self, results: list[RowResult]) -> None:
        """Lines are written only when all rows are done."""

    @cached_property
    def _unmatched(self) -> dict[str, int]:
        """Return the numbers of selected rows that have not been matched yet, by id."""
        with self._lock:
            query = "SELECT id, number FROM failures WHERE id IS NOT NULL ORDER BY number DESC"
            return {id: number for id, number in self._rows(query) if number in self._wanted}

    def _failed(self, number: int) -> tuple[str | None, int]:
        """Return id and line of a row when it failed."""
        with self._lock:
            sql = "SELECT id, line FROM failures WHERE number = ?"
            id, line = self.database.execute(sql, (number,)).fetchone()
            return id, line

    def _uncount(self, result: RowResult, code: str) -> None:
        (status,) = self.database.execute("SELECT status FROM failures WHERE number = ?", (result.number,)).fetchone()
        setattr(self.counts, status, getattr(self.counts, status) - 1)
        self.counts.codes[code] -= 1
        if not self.counts.codes[code]:
            del self.counts.codes[code]

    def _merged(self) -> Iterator[tuple[RowStatus, Iterator[bytes]]]:
        """Yield the new lines of each file, in order."""
        failed = "SELECT number FROM failures ORDER BY number"
        errors = "SELECT number FROM failures WHERE status = 'error' ORDER BY number"
        yield RowStatus.OK, self._merge_lines(RowStatus.OK, _all_but(self._first, self._rows(failed)))
        yield RowStatus.ERROR, self._merge_lines(RowStatus.ERROR, (number for (number,) in self._rows(errors)))
        yield RowStatus.DEAD, self._dead_letters()

    def _merge_lines(self, status: RowStatus, numbers: Iterable[int]) -> Iterator[bytes]:
        """Yield the old lines (whose rows have these numbers) without those of retried rows, and the new ones."""
        retried = {number for (number,) in self._rows("SELECT number FROM retried")}
        old = ((number, line) for number, line in zip(numbers, self._old_lines(status)) if number not in retried)  # noqa: B905
        new = self._rows(f"SELECT number, text FROM retried WHERE status = '{status}' ORDER BY number")
        return (line for _, line in heapq.merge(old, new))

    def _dead_letters(self) -> Iterator[bytes]:
        """Yield dead letters in their old order, each with its line in the input."""
        lines = "SELECT line FROM failures WHERE number IN (SELECT number FROM retried)"
        retried = {line for (line,) in self._rows(lines)}
        yield from (letter for letter in self._old_lines(RowStatus.DEAD) if orjson.loads(letter)["line"] not in retried)
        yield from (text for (text,) in self._rows("SELECT text FROM retried WHERE status = 'dead' ORDER BY number"))

    def _old_lines(self, status: RowStatus) -> Iterator[bytes]:
        return read_lines(self._directory.result_file(status) if self._files[status].length else None)

    def _rewrite(self, status: RowStatus, lines: Iterator[bytes]) -> int:
        path = merge_path(self._directory.result_file(status))
        path.unlink(missing_ok=True)
        if self._files[status].length:  # also an empty file must replace the old one
            path.touch()
            sync(path.parent)
        with closing(LineFile(path, 0)) as file:
            while block := list(islice(lines, 1000)):
                file.write(block)
            file.sync()
        return file.length

    def _replace_failures(self) -> None:
        """Update the state's list of failures."""
        self.database.execute("DELETE FROM failures WHERE number IN (SELECT number FROM retried)")
        columns = "number, line, id, status, code, message, attempts"
        self.database.execute(f"INSERT INTO failures SELECT {columns} FROM retried WHERE status != 'ok'")
        self.database.execute("DELETE FROM retried")

    def _rows(self, sql: str) -> Iterator[Any]:
        return self.database.execute(sql)


def _all_but(first: int, numbers: Iterable[tuple[int]]) -> Iterator[int]:
    """Yield all numbers from `first` on except these."""
    at = first
    for (number,) in numbers:
        yield from range(at, number)
        at = number + 1
    while True:
        yield at
        at += 1


def open_ledger(directory: JobDirectory, first: int) -> Ledger:
    """Return the ledger of the job's rows, or of those that are retried."""
    ledger = Ledger(directory, first)
    if not ledger.recall("retrying", default=False):
        return ledger
    ledger.close()
    return RetryLedger(directory, first)


def matches_by_id(source: RowSource, spec: InputSpec) -> bool:
    """Return whether rows are matched by id. Answers may be in the table since, and a query may no longer return rows
    with one: then row numbers have changed, and so have ids that derive from them.
    """
    return source.format == "sql" and (source.key_column is not None or spec.id is not None)


def check_input(source: RowSource, spec: InputSpec) -> None:
    """Raises BatchError `input_changed` if rows that are matched by number have other numbers now."""
    if not matches_by_id(source, spec):
        source.check_unchanged()


def check_retry_codes(codes: Sequence[str]) -> None:
    """Raises BatchError `invalid_parameter` for codes of rows that cannot be retried."""
    for code in codes:
        if code in NOT_RETRYABLE:
            raise BatchError(
                f"rows that failed with {code} have the id of another row; give them unique ids in a new job",
                "invalid_parameter",
            )
