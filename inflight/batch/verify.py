"""Proves that a job has done what it should: reads its input and its output again, and trusts nothing in between."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from inflight.batch.destinations.answer import is_openai
from inflight.batch.destinations.make import make_destination
from inflight.batch.errors import BatchError
from inflight.batch.forms.make import make_form
from inflight.batch.job import Job
from inflight.batch.job_directory import JobDirectory
from inflight.batch.row import Kind
from inflight.batch.sources.open import first_record, open_source
from inflight.batch.sources.source import Source
from inflight.batch.verifying.tally import Tally
from inflight.batch.verifying.verdict import Found, Verdict

_AT_ONCE = 10_000


def verify(directory: JobDirectory) -> Verdict:
    """Holds the records of a job against its input, and its output against its answers, in constant memory.

    Of the state it takes only which input the job began with, and whether it says that it is finished. Raises
    BatchError: `job_damaged`, `input_changed`, and those of the input.
    """
    job = directory.job()
    begun, finished = _said(directory)
    source = open_source(job.input, begun)
    if begun and source.fingerprint != begun:
        raise BatchError(
            f"the input of the job at {directory.path} is not the one that it began with; put that back to verify it",
            "input_changed",
        )
    with closing(Tally()) as tally:
        unreadable = Found.of(
            one for kind in Kind for one in _note(tally, kind, directory.lines(kind), finished=finished)
        )
        rows = _Rows(job, source)
        missing = Found.of(rows.without_record(tally))
        twice, unknown = Found.of(tally.twice()), Found.of(tally.unknown())
    output, damage = _output(job, directory) if finished else (Found(), "")
    return Verdict(
        rows.count,
        tally.counts[Kind.OK],
        tally.counts[Kind.ERROR],
        tally.counts[Kind.DEAD],
        finished,
        missing,
        twice,
        unknown,
        unreadable,
        output,
        damage,
    )


def _note(tally: Tally, kind: Kind, path: Path, finished: bool) -> Iterator[str]:
    """Note the records of a file; gives the lines that are none."""
    if not path.exists():
        return
    keys: list[Any] = []
    note = tally.note_dead if kind is Kind.DEAD else lambda some: tally.note(kind, some)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not finished and not line.endswith(b"\n"):
                break  # it is being written, or will be cut off when the job is resumed
            try:
                keys.append(_key(kind, line))
            except (ValueError, KeyError, TypeError):
                yield f"{path}:{number}"
            if len(keys) >= _AT_ONCE:
                note(keys)
                keys.clear()
    note(keys)


def _key(kind: Kind, line: bytes) -> Any:
    """What tells a record apart: a dead letter's line, the id of any other."""
    values = orjson.loads(line)
    if not line.endswith(b"\n"):
        raise ValueError("the line has no end")
    if kind is Kind.DEAD:
        return int(values["line"])
    id_ = values["custom_id"] if is_openai(values) else values["id"]
    if not isinstance(id_, (str, int)):
        raise TypeError("that is no id")
    return str(id_)


class _Rows:
    """The rows of a job's input, read once."""

    def __init__(self, job: Job, source: Source) -> None:
        self._job, self._source = job, source
        self.count = 0

    def without_record(self, tally: Tally) -> Iterator[str]:
        """Takes the record of each row; gives the rows that have none."""
        form = make_form(self._job, self._source, first_record(self._source), 0)
        part = self._job.input.part
        limits = [limit for limit in (self._job.input.limit, part.rows) if limit is not None]
        records = islice(self._source.read(part.after, part.line), min(limits) if limits else None)
        for number, record in enumerate(records, part.first):
            self.count += 1
            row = form.row(number, record)
            if not tally.take(row.line, row.id):
                yield f"line {row.line}" if row.id is None else row.id


def _output(job: Job, directory: JobDirectory) -> tuple[Found, str]:
    """The answers that the output lacks or has otherwise; why it can't be read, where it can't."""
    destination = make_destination(job, directory)
    if destination is None:
        return Found(), ""
    files = {kind: path for kind in Kind if (path := directory.lines(kind)).exists()}
    try:
        return Found.of(destination.differences(files)), ""
    except BatchError as error:
        return Found(), f"The output can't be held against the answers: {error}."
    finally:
        destination.close()


def _said(directory: JobDirectory) -> tuple[str, bool]:
    """The fingerprint of the input that a job began with, and whether it is finished, by its state.

    A job that runs holds its state, and is not finished.
    """
    if not directory.state.exists():
        return "", False
    try:
        with closing(sqlite3.connect(f"{directory.state.absolute().as_uri()}?mode=ro", uri=True, timeout=1)) as state:
            said = {name: json.loads(value) for name, value in state.execute("SELECT name, value FROM meta")}
    except sqlite3.OperationalError:
        return "", False
    except (sqlite3.DatabaseError, ValueError) as error:
        raise BatchError(f"{directory.state} is damaged ({error}); begin a new job", "job_damaged") from None
    return said.get("input", ""), bool(said.get("finished"))
