"""Rows that failed and are asked once more: chosen, asked, and their new lines put among the old ones."""

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
from inflight.batch.job import InputSpec
from inflight.batch.job_directory import JobDirectory
from inflight.batch.row import Fault, Kind, Outcome, Position, Row
from inflight.batch.sources.source import Source
from inflight.batch.state.ledger import Ledger, Stored
from inflight.batch.state.line_file import LineFile, merging, rename, sync_directory

NEVER = ("row_duplicate",)
"""Asked once more, such a row would be a second record of its id."""


def choose(ledger: Ledger, codes: Sequence[str]) -> int:
    """Take note of the failed rows with these codes, without any of all that were asked; how many there are."""
    chosen = "code IN (SELECT value FROM json_each(?))" if codes else "(kind = 'error' OR code = 'row_kills_engine')"
    values = (orjson.dumps(list(codes)).decode(),) if codes else ()
    barred = ", ".join(f"'{code}'" for code in NEVER)
    sql = f"INSERT OR IGNORE INTO retried(number) SELECT number FROM failures WHERE {chosen} AND code NOT IN ({barred})"
    found = ledger.database.execute(sql, values).rowcount
    if found:
        ledger.database.put("finished", False)
        ledger.remember("retrying", True)
    return found


class Retrial(Ledger):
    """The ledger of a job whose chosen rows are asked once more. Their outcomes wait in the state for `merge`.

    The input may have become another: a query gives no more what its job has filled. `find` and `check` see to it that
    no other row is asked in a row's place.
    """

    def __init__(self, directory: JobDirectory, first: int = 0) -> None:
        super().__init__(directory, first)
        self._first = first
        wanted = "SELECT number, code FROM failures WHERE number IN (SELECT number FROM retried WHERE kind IS NULL)"
        self._wanted: dict[int, str] = dict(self.database.execute(wanted).fetchall())

    @property
    def start(self) -> tuple[int, Position | None, int]:
        return self._first, None, 0

    @property
    def left(self) -> int:
        """Rows that have no new outcome yet."""
        return len(self._wanted)

    def done(self, number: int) -> bool:
        return number not in self._wanted

    def find(self, row: Row | Fault) -> Row | Fault | None:
        """The row as it was numbered when it failed, wherever it stands now; None where it isn't wanted."""
        number = self._unfound.pop(row.id, None) if row.id is not None else row.number
        if number is None or number not in self._wanted:
            return None
        id, line = self._failed(number)
        return replace(row, number=number, line=line) if id == row.id else None

    def check(self, row: Row | Fault) -> Row | Fault:
        """The row, which is wanted by its number. Raises BatchError `input_changed` where another one has that now."""
        id, line = self._failed(row.number)
        if id != row.id:
            raise BatchError(
                f"line {line} of the input has the id {row.id!r}, and had {id!r} when the job began; put the input back"
                " as it was and resume the job, or begin a new one",
                "input_changed",
            )
        return row

    def end_of_input(self, rows: int) -> None:
        """Raises BatchError `input_changed` for rows that were not there; they are not asked for any more."""
        with self._writing():
            if not self._wanted:
                return
            gone = ", ".join(repr(self._failed(number)[0]) for number in islice(self._wanted, 3))
            count = len(self._wanted)
            self.database.execute("DELETE FROM retried WHERE kind IS NULL")
            self.database.commit()
            self._wanted.clear()
        raise BatchError(
            f"{count:,} of the rows to be asked once more are not in the input any more ({gone}{', …' * (count > 3)});"
            " they keep their records: resume the job to end it with those of the others",
            "input_changed",
        )

    def claim(self, rows: Sequence[tuple[str, int]]) -> set[int]:
        return set()

    def mark(self, marks: Iterable[tuple[int, int, Position]]) -> None:
        """How far the input was done stays as it is."""

    def recover(self) -> None:
        """The old lines must be all that there are: those of others have no place among the new ones."""
        with self._writing():
            self._end_merge()
            for file in self._files.values():
                if file.beyond:
                    raise BatchError(
                        f"{file.path} has {file.beyond:,} bytes more than the job has written; take them out, and"
                        " resume the job",
                        "job_damaged",
                    )

    def merge(self) -> None:
        """Put the new lines in their places: whole new files beside the old ones, one commit, then their names.

        Raises BatchError. Whenever it is broken off, either all is as before, or the next opening ends it.
        """
        with self._writing():
            lengths = {kind: self._rewrite(kind, lines) for kind, lines in self._merged()}
            self._pass_over()
            stands = self.database.get("stands")
            self.database.put("stands", {**stands, "counts": self.counts.values(), "lengths": lengths})
            self.database.put("renames", True)
            for name, value in (("retrying", False), ("finished", False), ("delivered", 0)):
                self.database.put(name, value)
            self.database.commit()
            rename([self._directory.lines(kind) for kind in Kind])
            for kind, length in lengths.items():
                self._files[kind].close()
                self._files[kind] = LineFile(self._directory.lines(kind), length)
            self.remember("renames", False)

    def _take(self, outcomes: list[Outcome]) -> list[Stored]:
        for one in outcomes:
            if (before := self._wanted.pop(one.number, None)) is None:
                continue
            self._uncount(one, before)
            self.counts.add(one)
            self.database.execute(
                "INSERT OR REPLACE INTO retried VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (one.number, one.line, one.id, one.kind, one.text, one.code, one.message, *one.tokens, one.attempts),
            )
        self._clear(outcomes)
        return []

    def _write_down(self, new: list[Stored]) -> None:
        """Lines are written when all rows are there."""

    @cached_property
    def _unfound(self) -> dict[str, int]:
        """The numbers of wanted rows that were not met yet, by their ids."""
        with self._lock:
            wanted = "SELECT id, number FROM failures WHERE id IS NOT NULL ORDER BY number DESC"
            return {id: number for id, number in self._rows(wanted) if number in self._wanted}

    def _failed(self, number: int) -> tuple[str | None, int]:
        """Id and line of a row as it failed."""
        with self._lock:
            sql = "SELECT id, line FROM failures WHERE number = ?"
            id, line = self.database.execute(sql, (number,)).fetchone()
            return id, line

    def _uncount(self, one: Outcome, code: str) -> None:
        (kind,) = self.database.execute("SELECT kind FROM failures WHERE number = ?", (one.number,)).fetchone()
        setattr(self.counts, kind, getattr(self.counts, kind) - 1)
        self.counts.codes[code] -= 1
        if not self.counts.codes[code]:
            del self.counts.codes[code]

    def _merged(self) -> Iterator[tuple[Kind, Iterator[bytes]]]:
        """The new lines of each file, in order."""
        failed = "SELECT number FROM failures ORDER BY number"
        errors = "SELECT number FROM failures WHERE kind = 'error' ORDER BY number"
        yield Kind.OK, self._among(Kind.OK, _others(self._first, self._rows(failed)))
        yield Kind.ERROR, self._among(Kind.ERROR, (number for (number,) in self._rows(errors)))
        yield Kind.DEAD, self._letters()

    def _among(self, kind: Kind, numbers: Iterable[int]) -> Iterator[bytes]:
        """Old lines, whose rows have these numbers, without those that were asked once more, and the new ones."""
        again = {number for (number,) in self._rows("SELECT number FROM retried")}
        old = ((number, line) for number, line in zip(numbers, self._old(kind)) if number not in again)  # noqa: B905
        new = self._rows(f"SELECT number, text FROM retried WHERE kind = '{kind}' ORDER BY number")
        return (line for _, line in heapq.merge(old, new))

    def _letters(self) -> Iterator[bytes]:
        """Dead letters stand as they came, each with its line in the input."""
        lines = "SELECT line FROM failures WHERE number IN (SELECT number FROM retried)"
        again = {line for (line,) in self._rows(lines)}
        yield from (letter for letter in self._old(Kind.DEAD) if orjson.loads(letter)["line"] not in again)
        yield from (text for (text,) in self._rows("SELECT text FROM retried WHERE kind = 'dead' ORDER BY number"))

    def _old(self, kind: Kind) -> Iterator[bytes]:
        path = self._directory.lines(kind)
        if self._files[kind].length:
            with path.open("rb") as file:
                yield from (line.rstrip(b"\n") for line in file)

    def _rewrite(self, kind: Kind, lines: Iterator[bytes]) -> int:
        path = merging(self._directory.lines(kind))
        path.unlink(missing_ok=True)
        if self._files[kind].length:  # one without lines takes the place of the old one all the same
            path.touch()
            sync_directory(path.parent)
        with closing(LineFile(path, 0)) as file:
            while block := list(islice(lines, 1000)):
                file.write(block)
            file.sync()
        return file.length

    def _pass_over(self) -> None:
        """The state's own list of what failed."""
        self.database.execute("DELETE FROM failures WHERE number IN (SELECT number FROM retried)")
        columns = "number, line, id, kind, code, message, attempts"
        self.database.execute(f"INSERT INTO failures SELECT {columns} FROM retried WHERE kind != 'ok'")
        self.database.execute("DELETE FROM retried")

    def _rows(self, sql: str) -> Iterator[Any]:
        return self.database.execute(sql)


def _others(first: int, numbers: Iterable[tuple[int]]) -> Iterator[int]:
    """All numbers from the first on but these."""
    at = first
    for (number,) in numbers:
        yield from range(at, number)
        at = number + 1
    while True:
        yield at
        at += 1


def open_ledger(directory: JobDirectory, first: int) -> Ledger:
    """That of a job's rows, or of those that are asked once more."""
    ledger = Ledger(directory, first)
    if not ledger.recall("retrying", default=False):
        return ledger
    ledger.close()
    return Retrial(directory, first)


def by_id(source: Source, spec: InputSpec) -> bool:
    """Whether rows are found by their ids. Answers may stand in a table since, and a query give no more what has one:
    a row's number is another one then, and so is its id where that comes of the number.
    """
    return source.format == "sql" and (source.key is not None or spec.id is not None)


def check_input(source: Source, spec: InputSpec) -> None:
    """Raises BatchError `input_changed` where rows that are found by their numbers have other ones now."""
    if not by_id(source, spec):
        source.check_places()


def check_retry(codes: Sequence[str]) -> None:
    """Raises BatchError `invalid_parameter` for rows that can't be asked once more."""
    for code in codes:
        if code in NEVER:
            raise BatchError(
                f"rows that failed of {code} have an id that another row's record has; give them ids of their own in a"
                " new job",
                "invalid_parameter",
            )
