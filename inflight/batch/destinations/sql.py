"""Answers in a table: into rows that are there, found by their ids, or into rows of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inflight.batch.destinations import table as tables
from inflight.batch.destinations.answer import Answer, in_parts, read_answer, read_answers
from inflight.batch.destinations.database import Database
from inflight.batch.destinations.table import Target
from inflight.batch.errors import BatchError
from inflight.batch.failpoints import reach
from inflight.batch.job import Job
from inflight.batch.row import Kind

if TYPE_CHECKING:
    from sqlalchemy import Connection

_AT_ONCE = 500
"""Ids in one question: SQLite takes 999 parameters at least."""
_EXAMPLES = 5


class SqlDestination:
    """Takes answers while the job runs.

    With `key` and `column` the rows of the table get their answers. Otherwise a row that is there with an answer's id
    gets new values, and one that isn't is added; the table is made where there is none.
    """

    takes_rows = True

    def __init__(self, job: Job) -> None:
        self._output, self._keep = job.output, job.input.keep
        self._database = Database(job.output.address)
        self._target: Target | None = None
        self._gone = 0
        self._gone_first: list[Any] = []

    def check(self) -> None:
        if tables.updates(self._output) and not self._database.is_there:
            raise BatchError(f"there is no database {self._database.shown}; check its path", "output_invalid")
        self._database.run(self._look, patient=False)

    def one_key(self, id_: str) -> str:
        return id_ if self._target is None else self._target.one_key(id_)

    def put(self, lines: Iterable[bytes]) -> None:
        answers = [read_answer(line) for line in lines]
        if answers:
            reach("table.put")
            self._database.run(partial(self._write, answers=answers))

    def finish(self, files: dict[Kind, Path]) -> list[str]:
        """All answers were put; rows that went away since then are counted, and added where they can be."""
        self._gone, self._gone_first = 0, []
        for answers in in_parts(read_answers(files.get(Kind.OK)), _AT_ONCE):
            self._database.run(partial(self._complete, answers=answers))
        rest = [str(path) for kind, path in files.items() if kind is not Kind.OK and path.exists()]
        return [f"{self._database.shown} (table {self._output.table})", *rest]

    def notes(self) -> list[str]:
        if not self._gone:
            return []
        first = ", ".join(str(one) for one in self._gone_first)
        return [
            f"answers without a row in the table {self._output.table}: {self._gone} (ids {first}"
            f"{', ...' if self._gone > _EXAMPLES else ''}); their lines are in the job's directory"
        ]

    def differences(self, files: dict[Kind, Path]) -> Iterator[str]:
        """The ids of answers that the table lacks, or has otherwise."""
        for answers in in_parts(read_answers(files.get(Kind.OK)), _AT_ONCE):
            yield from self._database.run(partial(self._wrong, answers=answers))

    def close(self) -> None:
        self._database.close()

    def _look(self, connection: Connection) -> None:
        """Whether the table has its columns, and may be written: an update of no row asks for the right to."""
        from sqlalchemy import false

        target = self._found(connection)
        if target is not None:
            values = {column.name: None for name, column in target.columns.items() if name != "id"}
            connection.execute(target.table.update().where(false()).values(values))

    def _found(self, connection: Connection) -> Target | None:
        if self._target is None:
            self._target = tables.find(connection, self._output, self._database.shown, self._keep)
        return self._target

    def _write(self, connection: Connection, answers: list[Answer]) -> None:
        target = self._found(connection)
        if target is None:
            tables.make(connection, self._output, answers, self._keep)
            target = self._found(connection)
            assert target is not None
            target = self._target = replace(target, made=True)
        for some in in_parts(answers, _AT_ONCE):
            self._write_some(connection, target, some)

    def _write_some(self, connection: Connection, target: Target, answers: list[Answer]) -> None:
        from sqlalchemy import bindparam

        by_key: dict[str, Answer] = {}
        for answer in answers:
            other = by_key.setdefault(target.one_key(answer.id), answer)
            if other.id != answer.id:  # rows whose ids were read before the table was there
                raise BatchError(
                    f"the column {target.key.name!r} of the table {self._output.table} takes the ids {other.id!r} and"
                    f" {answer.id!r} for one; make it a column of texts and resume the job",
                    "output_invalid",
                )
        there = self._there(connection, target, answers)
        old = [{"_id": id_, **target.row(by_key[key])} for key, id_ in there.items() if key in by_key]
        if old:
            connection.execute(target.table.update().where(target.key == bindparam("_id")), old)
        new = [answer for key, answer in by_key.items() if key not in there]
        if tables.updates(self._output):
            self._gone += len(new)
            self._gone_first += [answer.id for answer in new[: _EXAMPLES - len(self._gone_first)]]
        elif new:
            connection.execute(target.table.insert(), [self._new(target, answer) for answer in new])

    def _new(self, target: Target, answer: Answer) -> dict[str, Any]:
        id_ = target.id(answer.id)
        if id_ is None:
            raise BatchError(
                f"the column {target.key.name!r} of the table {self._output.table} takes whole numbers, and there is a"
                f" row with the id {answer.id!r}; make it a column of texts and resume the job",
                "output_invalid",
            )
        return {target.key.name: id_, **target.row(answer)}

    def _there(self, connection: Connection, target: Target, answers: Iterable[Answer]) -> dict[str, Any]:
        """The ids that are in the table, as they stand there, by their keys."""
        from sqlalchemy import select

        wanted = {id_ for answer in answers if (id_ := target.id(answer.id)) is not None}
        found = connection.execute(select(target.key).where(target.key.in_(wanted)))
        return {target.one_key(row[0]): row[0] for row in found}

    def _complete(self, connection: Connection, answers: list[Answer]) -> None:
        """Write those whose row is not there."""
        target = self._found(connection)
        if target is not None:
            there = self._there(connection, target, answers)
            answers = [answer for answer in answers if target.one_key(answer.id) not in there]
        if answers:
            self._write(connection, answers)

    def _wrong(self, connection: Connection, answers: list[Answer]) -> list[str]:
        from sqlalchemy import select

        target = self._found(connection)
        if target is None:
            return [str(answer.id) for answer in answers]
        text = target.columns["text"]
        ids = {id_ for answer in answers if (id_ := target.id(answer.id)) is not None}
        rows = connection.execute(select(target.key, text).where(target.key.in_(ids)))
        found = {target.one_key(row[0]): row[1] for row in rows}
        return [
            str(answer.id)
            for answer in answers
            if (key := target.one_key(answer.id)) not in found or found[key] != target.row(answer)[text.name]
        ]
