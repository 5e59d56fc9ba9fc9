"""Verifies a job: reads its input and its output again, independent of its state."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import orjson

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import Job
from inflight.batch.outputs.answer_record import is_openai_line
from inflight.batch.outputs.factory import create_output
from inflight.batch.row_formats.factory import read_rows
from inflight.batch.row_formats.template import wanted_columns
from inflight.batch.sources.factory import open_source
from inflight.batch.sources.interface import RowSource

_EXAMPLES = 10


@dataclass(frozen=True)
class Findings:
    """The number of findings of one kind, and the first of them."""

    count: int = 0
    first: tuple[str, ...] = ()

    @classmethod
    def from_items(cls, things: Iterable[str]) -> Findings:
        left = iter(things)
        first = tuple(islice(left, _EXAMPLES))
        return cls(len(first) + sum(1 for _ in left), first)

    def __str__(self) -> str:
        return f"{self.count} ({', '.join(self.first)}{', ...' if self.count > len(self.first) else ''})"


@dataclass(frozen=True)
class VerificationResult:
    """Rows of the input, records of the files of lines, and whether they agree.

    `missing`: ids (or lines) of rows without a record; if the job is not `finished`, these are its open rows.
    `duplicates`: rows with more than one record; `unknown`: records that belong to no row; `unreadable`: lines that are
    not records. `output`: ids of answers that are missing from the output or different.
    """

    rows: int
    ok: int
    error: int
    dead: int
    finished: bool
    missing: Findings = Findings()
    duplicates: Findings = Findings()
    unknown: Findings = Findings()
    unreadable: Findings = Findings()
    output: Findings = Findings()
    output_error: str = ""
    """Why the output could not be read."""

    @property
    def complete(self) -> bool:
        """Whether the job is finished, and input = ok + error + dead, each row once, and all in the output."""
        return self.finished and not self.missing.count and self.consistent

    @property
    def consistent(self) -> bool:
        """Whether everything that exists is right, even if the job is not finished."""
        wrong = (self.duplicates, self.unknown, self.unreadable, self.output)
        done = self.rows - self.missing.count == self.ok + self.error + self.dead
        return done and not self.output_error and not any(findings.count for findings in wrong)

    def messages(self) -> list[str]:
        """Return sentences for people: the sum, and each problem."""
        sum_ = f"{self.rows:,} rows = {self.ok:,} ok + {self.error:,} error + {self.dead:,} dead"
        if self.missing.count:
            sum_ += f" + {self.missing.count:,} {'missing' if self.finished else 'open'}"
        if self.complete:
            return [f"{sum_}: every row exactly once."]
        lines = [f"{sum_}."]
        if not self.finished:
            lines.append("The job is not finished; resume it.")
        elif self.missing.count:
            lines.append(f"Rows without a record: {self.missing}.")
        for what, findings in (
            ("Rows with more than one record", self.duplicates),
            ("Records that belong to no row", self.unknown),
            ("Lines that can't be read", self.unreadable),
            ("Answers that are missing from the output or different", self.output),
        ):
            if findings.count:
                lines.append(f"{what}: {findings}.")
        return [*lines, self.output_error] if self.output_error else lines


class RecordIndex:
    """A temporary database for the index.

    First all records are added, then each row is matched with its record; the remaining records belong to no row.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(RowStatus, 0)
        """The number of records by status."""
        self.rows = 0
        """The number of rows that were matched, or have no record."""
        self._base = sqlite3.connect("", isolation_level=None)
        self._base.execute("PRAGMA cache_size=-65536")
        self._base.execute("PRAGMA journal_mode=OFF")
        self._base.execute("PRAGMA synchronous=OFF")
        # The key is an id, or the line of a dead letter: SQLite keeps texts and integers apart.
        self._base.execute("CREATE TABLE records(key PRIMARY KEY, n INTEGER, taken INTEGER) WITHOUT ROWID")
        self._base.execute("BEGIN")  # one transaction for everything, since nothing must be durable

    def add(self, kind: RowStatus, keys: Sequence[str | int]) -> None:
        """Add records: answers and errors by id, dead letters by line number."""
        self.counts[kind] += len(keys)
        self._base.executemany(
            "INSERT INTO records VALUES (?, 1, 0) ON CONFLICT (key) DO UPDATE SET n = n + 1", [(key,) for key in keys]
        )

    def match_row(self, line: int, id_: str | None) -> bool:
        """Return whether this row has a record that no earlier row has matched."""
        self.rows += 1
        take = "UPDATE records SET taken = 1 WHERE key = ? AND taken = 0"
        return any(self._base.execute(take, (key,)).rowcount for key in (line, id_))

    def keys(self, condition: str) -> Iterator[str]:
        """Yield the ids of records, and then the lines of dead letters, that meet the condition."""
        for kind, shown in (("text", "{}"), ("integer", "line {}")):
            query = f"SELECT key FROM records WHERE {condition} AND typeof(key) = ?"
            yield from (shown.format(key) for (key,) in self._base.execute(query, (kind,)))

    def close(self) -> None:
        self._base.close()


_KEYS_PER_INSERT = 10_000


def verify(directory: JobDirectory) -> VerificationResult:
    """Compare the records of a job with its input, and its output with its answers, in constant memory.

    From the state it uses only the job's original input, and whether it is finished. Raises BatchError: `job_damaged`,
    `input_changed`, and those of the input.
    """
    job = directory.job()
    recorded = recorded_state(directory)
    finished = bool(recorded.get("finished"))
    source = original_source(directory, job, recorded)
    with closing(RecordIndex()) as tally:
        indexed = (_index_records(tally, kind, directory.result_file(kind), finished=finished) for kind in RowStatus)
        unreadable = Findings.from_items(chain.from_iterable(indexed))
        missing = Findings.from_items(_rows_without_record(job, source, tally))
        twice, unknown = (Findings.from_items(tally.keys(condition)) for condition in ("n > 1", "taken = 0"))
    output, damage = _output(job, directory) if finished else (Findings(), "")
    ok, error, dead = (tally.counts[kind] for kind in RowStatus)
    return VerificationResult(
        tally.rows, ok, error, dead, finished, missing, twice, unknown, unreadable, output, output_error=damage
    )


def _index_records(tally: RecordIndex, kind: RowStatus, path: Path, finished: bool) -> Iterator[str]:
    """Index the records of a file; yield the invalid lines."""
    if not path.exists():
        return
    keys: list[str | int] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not finished and not line.endswith(b"\n"):
                break  # it is being written, or will be truncated when the job is resumed
            try:
                if not line.endswith(b"\n"):
                    raise ValueError("the line has no end")
                keys.append(record_key(kind, line))
            except (ValueError, KeyError, TypeError):
                yield f"{path}:{number}"
            if len(keys) >= _KEYS_PER_INSERT:
                tally.add(kind, keys)
                keys.clear()
    tally.add(kind, keys)


def record_key(kind: RowStatus, line: bytes) -> str | int:
    """Return the key of a record: the line for a dead letter, otherwise the id."""
    values = orjson.loads(line)
    if kind is RowStatus.DEAD:
        return int(values["line"])
    id_ = values["custom_id"] if is_openai_line(values) else values["id"]
    if not isinstance(id_, (str, int)):
        raise TypeError("that is no id")
    return str(id_)


def original_source(directory: JobDirectory, job: Job, recorded: Mapping[str, Any]) -> RowSource:
    """Open the input of a job. Raises BatchError `input_changed` if it is not the one that it started with."""
    original = recorded.get("input", "")
    source = open_source(job.input, original, wanted_columns(job))
    if original and source.fingerprint != original:
        raise BatchError(
            f"the input of the job at {directory.path} is not the one that it started with; restore it to verify the "
            f"job",
            "input_changed",
        )
    return source


def _rows_without_record(job: Job, source: RowSource, tally: RecordIndex) -> Iterator[str]:
    """Match each row of the input with its record; yield the rows without one."""
    for _, row in read_rows(job, source):
        if not tally.match_row(row.line, row.id):
            yield f"line {row.line}" if row.id is None else row.id


def _output(job: Job, directory: JobDirectory) -> tuple[Findings, str]:
    """Return the answers that are missing from the output or different, and why the output cannot be read."""
    destination = create_output(job, directory)
    if destination is None:
        return Findings(), ""
    try:
        return Findings.from_items(destination.find_differences(directory.result_files())), ""
    except BatchError as error:
        return Findings(), f"The output can't be compared with the answers: {error}."
    finally:
        destination.close()


def recorded_state(directory: JobDirectory) -> dict[str, Any]:
    """Return what the job's state has on the whole job: `input`, the fingerprint, `finished`, and `build`, the model's.

    It is empty for a job that is running, which locks its state.
    """
    if not directory.state.exists():
        return {}
    try:
        with closing(sqlite3.connect(f"{directory.state.absolute().as_uri()}?mode=ro", uri=True, timeout=1)) as state:
            return {name: json.loads(value) for name, value in state.execute("SELECT name, value FROM meta")}
    except sqlite3.OperationalError:
        return {}
    except (sqlite3.DatabaseError, ValueError) as error:
        raise BatchError(f"{directory.state} is damaged ({error}); start a new job", "job_damaged") from None
