"""Answers in a database table: in existing rows, found by their ids, or in rows of the job's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inflight.batch.errors import BatchError
from inflight.batch.failpoints import failpoint
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import Job
from inflight.batch.outputs import table as tables
from inflight.batch.outputs.answer_record import ANSWER_FIELDS, AnswerRecord, batched, parse_answer, read_answer_records
from inflight.batch.outputs.database import OutputDatabase
from inflight.batch.outputs.interface import OnMessage, OutputWriter, ignore_message
from inflight.batch.outputs.table import OutputTable

if TYPE_CHECKING:
    from sqlalchemy import Connection

_IDS_PER_QUERY = 500
"""Ids per query: SQLite supports at least 999 parameters."""
_EXAMPLES = 5


class TableOutput(OutputWriter):
    """Writes answers to a table while the job runs.

    With `key` and `column`, answers are written to existing rows. Otherwise a row with an answer's id is updated, and a
    missing one is inserted; the table is created if it does not exist.
    """

    is_incremental = True

    def __init__(self, job: Job) -> None:
        self._job, self._output = job, job.output
        self.address = job.output.address
        self._database = OutputDatabase(job.output.address)
        self._target: OutputTable | None = None
        self._created_here = False
        self.with_answers: Callable[[Connection, list[Any]], None] = lambda connection, ids: None
        """Called in the transaction that writes the answers with these ids."""
        self._missing_rows = 0
        self._missing_examples: list[Any] = []

    def check(self) -> None:
        if tables.updates_existing_rows(self._job) and not self._database.exists:
            raise BatchError(f"there is no database {self._database.shown}; check its path", "output_invalid")
        self._database.run(self._check_table, retry=False)

    def normalize_id(self, id_: str) -> str:
        return id_ if self._target is None else self._target.normalize_id(id_)

    def write_rows(self, lines: Iterable[bytes]) -> None:
        answers = [parse_answer(line, self._job.task) for line in lines]
        if answers:
            failpoint("table.put")
            self._run_write(partial(self._write_all, answers=answers))

    def finalize(self, files: dict[RowStatus, Path], on_message: OnMessage = ignore_message) -> list[str]:
        """Check that the table has all answers; rows that were deleted since are counted, and inserted again if
        possible."""
        self._missing_rows, self._missing_examples = 0, []
        for answers in batched(read_answer_records(files.get(RowStatus.OK), self._job.task), _IDS_PER_QUERY):
            self._run_write(partial(self._write_missing, answers=answers))
        rest = [str(path) for kind, path in files.items() if kind is not RowStatus.OK and path.exists()]
        return [f"{self._database.shown} (table {self._output.table})", *rest]

    def notes(self) -> list[str]:
        if not self._missing_rows:
            return []
        first = ", ".join(str(id_) for id_ in self._missing_examples)
        return [
            f"answers without a row in the table {self._output.table}: {self._missing_rows} (ids {first}"
            f"{', ...' if self._missing_rows > _EXAMPLES else ''}); their lines are in the job's directory"
        ]

    def find_differences(self, files: dict[RowStatus, Path]) -> Iterator[str]:
        """Yield the ids of answers that are missing from the table, or different."""
        for answers in batched(read_answer_records(files.get(RowStatus.OK), self._job.task), _IDS_PER_QUERY):
            yield from self._database.run(partial(self._differing_ids, answers=answers))

    def close(self) -> None:
        self._database.close()

    def _check_table(self, connection: Connection) -> None:
        """Check that the table has the columns, and is writable."""
        target = self._find_table(connection)
        if target is not None:
            _update_nothing(connection, target)

    def _find_table(self, connection: Connection) -> OutputTable | None:
        if self._target is None:
            table = self._read_table(connection)
            self._target = None if table is None else replace(table, created_here=self._created_here)
        return self._target

    def _read_table(self, connection: Connection) -> OutputTable | None:
        return tables.find_table(connection, self._job, self._database.shown)

    def _run_write(self, write: Callable[[Connection], None]) -> None:
        """Run a transaction that may create the table. If it is rolled back, the table is looked for again."""
        target = self._target

        def attempt(connection: Connection) -> None:
            self._target = target
            write(connection)

        try:
            self._database.run(attempt)
        except BatchError:
            self._target = target
            raise

    def _write_all(self, connection: Connection, answers: list[AnswerRecord]) -> None:
        self._write(connection, answers)
        self.with_answers(connection, [answer.id for answer in answers])

    def _write(self, connection: Connection, answers: list[AnswerRecord]) -> None:
        target = self._table_for(connection, answers)
        _update_nothing(connection, target)
        for some in batched(answers, _IDS_PER_QUERY):
            self._write_some(connection, target, some)

    def _table_for(self, connection: Connection, answers: list[AnswerRecord]) -> OutputTable:
        """Return the table; it is created for these answers if it does not exist."""
        target = self._find_table(connection)
        if target is None:
            tables.create_table(connection, self._job, answers, self._column_types(answers))
            self._created_here = True
            target = self._find_table(connection)
            assert target is not None
        return target

    def _column_types(self, answers: list[AnswerRecord]) -> dict[str, Any]:
        """Return the types of a new table's columns for fields that have not the usual one."""
        return {}

    def _write_some(self, connection: Connection, target: OutputTable, answers: list[AnswerRecord]) -> None:
        from sqlalchemy import bindparam

        by_key = self._by_key(target, answers)
        there = self._existing_ids(connection, target, answers)
        old = [{"_id": id_, **target.row(by_key[key])} for key, id_ in there.items() if key in by_key]
        if old:
            connection.execute(target.table.update().where(target.key == bindparam("_id")), old)
        new = [answer for key, answer in by_key.items() if key not in there]
        if tables.updates_existing_rows(self._job):
            self._count_missing([answer.id for answer in new])
        elif new:
            key = target.key.name
            rows = [{key: self._new_id(target, answer), **target.row(answer)} for answer in new]
            connection.execute(target.table.insert(), rows)

    def _count_missing(self, ids: list[Any]) -> None:
        self._missing_rows += len(ids)
        self._missing_examples += ids[: _EXAMPLES - len(self._missing_examples)]

    def _by_key(self, target: OutputTable, answers: Iterable[AnswerRecord]) -> dict[str, AnswerRecord]:
        """Return the answers by the ids that the table distinguishes. Raises BatchError if it does not those of two."""
        by_key: dict[str, AnswerRecord] = {}
        for answer in answers:
            other = by_key.setdefault(target.normalize_id(answer.id), answer)
            if other.id != answer.id:  # rows whose ids were read before the table existed
                raise BatchError(
                    f"the column {target.key.name!r} of the table {self._output.table} treats the ids {other.id!r} "
                    f"and {answer.id!r} as equal; change it to a text column and resume the job",
                    "output_invalid",
                )
        return by_key

    def _new_id(self, target: OutputTable, answer: AnswerRecord) -> Any:
        id_ = target.convert_id(answer.id)
        if id_ is None:
            raise BatchError(
                f"the column {target.key.name!r} of the table {self._output.table} has an integer type, but a row has "
                f"the id {answer.id!r}; change it to a text column and resume the job",
                "output_invalid",
            )
        return id_

    def _existing_ids(
        self, connection: Connection, target: OutputTable, answers: Iterable[AnswerRecord]
    ) -> dict[str, Any]:
        """Return the ids that exist in the table, as stored, by their keys."""
        from sqlalchemy import select

        rows = connection.execute(select(target.key).where(target.key.in_(_ids(target, answers))))
        return {target.normalize_id(row[0]): row[0] for row in rows}

    def _write_missing(self, connection: Connection, answers: list[AnswerRecord]) -> None:
        """Write the answers whose rows are missing."""
        target = self._find_table(connection)
        if target is not None:
            there = self._existing_ids(connection, target, answers)
            answers = [answer for answer in answers if target.normalize_id(answer.id) not in there]
        if answers:
            self._write(connection, answers)

    def _differing_ids(self, connection: Connection, answers: list[AnswerRecord]) -> list[str]:
        from sqlalchemy import select

        target = self._find_table(connection)
        if target is None:
            return [str(answer.id) for answer in answers]
        text = target.columns[ANSWER_FIELDS[self._job.task][1]]
        rows = connection.execute(select(target.key, text).where(target.key.in_(_ids(target, answers))))
        stored = {target.normalize_id(row[0]): row[1] for row in rows}
        return [
            str(answer.id)
            for answer in answers
            if (key := target.normalize_id(answer.id)) not in stored or not self._is_same(target, answer, stored[key])
        ]

    def _is_same(self, target: OutputTable, answer: AnswerRecord, stored: Any) -> bool:
        """Return whether the table has this answer."""
        return bool(stored == target.row(answer)[target.columns[ANSWER_FIELDS[self._job.task][1]].name])


def _update_nothing(connection: Connection, target: OutputTable) -> None:
    """Wait until the table may be written, and check the privileges. A server that waits for a lock reads no rows, and
    a connection with rows that it does not read would be given up (`tcp_user_timeout`)."""
    from sqlalchemy import false

    values = {column.name: None for name, column in target.columns.items() if name != "id"}
    connection.execute(target.table.update().where(false()).values(values))


def _ids(target: OutputTable, answers: Iterable[AnswerRecord]) -> set[Any]:
    """Return the ids of answers that the table can contain, in its type."""
    return {id_ for answer in answers if (id_ := target.convert_id(answer.id)) is not None}
