"""The table of an output: found or created, and its columns for the values of an answer."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import orjson

from inflight.batch.errors import BatchError
from inflight.batch.job.spec import Job, OutputSpec
from inflight.batch.outputs.answer_record import ANSWER_FIELDS, AnswerRecord

if TYPE_CHECKING:
    from sqlalchemy import Column, Connection, Table

_WHOLE = re.compile(r"[+-]?[0-9]+")
_LARGEST = 2**63


@dataclass(frozen=True)
class OutputTable:
    """A table, and its columns by the name of the answer's value that they receive.

    `created_here`: this process created it, with a key for the ids of its first answers. `fold`: maps texts that the
    database treats as equal to the same text.
    """

    table: Table
    columns: dict[str, Column[Any]]
    created_here: bool = False
    fold: Callable[[str], str] = str

    @property
    def key(self) -> Column[Any]:
        return self.columns["id"]

    def convert_id(self, id_: Any) -> Any:
        """Return an id in the column's type; None if the column cannot contain it."""
        value = _as_key(self.key)(id_)
        # The ids were read before the table existed, so nothing has checked whether two of them are the same number.
        return None if self.created_here and type(value) is int and str(value) != str(id_) else value

    def normalize_id(self, id_: Any) -> str:
        """Return one value for all ids that the column treats as equal, such as `7`, `007` and `+7` for numbers."""
        value = self.convert_id(id_)
        if value is None:
            return str(id_)
        return self.fold(value) if isinstance(value, str) else str(value)

    def row(self, answer: AnswerRecord) -> dict[str, Any]:
        """Return the values of an answer by column, without the id."""
        values = answer.as_dict()
        return {column.name: _plain(column, values.get(name)) for name, column in self.columns.items() if name != "id"}


def updates_existing_rows(job: Job) -> bool:
    """Return whether answers are written to existing rows only. Embeddings are, in the table that the rows are read
    from; in others, `column` is just where they go."""
    if job.task == "embed":
        return (job.input.address, job.input.table) == (job.output.address, job.output.table)
    return job.output.column is not None


def find_table(connection: Connection, job: Job, shown: str) -> OutputTable | None:
    """Return the output's table; None if it does not exist. Raises BatchError `output_invalid` if it is unusable."""
    from sqlalchemy import MetaData, Table
    from sqlalchemy.exc import NoSuchTableError

    output, fields = job.output, ANSWER_FIELDS[job.task]
    schema, name = _named(output)
    try:
        table = Table(name, MetaData(), schema=schema, autoload_with=connection)
    except NoSuchTableError:
        if updates_existing_rows(job):
            raise BatchError(
                f"{shown} has no table {output.table!r} for the answers; name another, or leave out --column to "
                f"create a table",
                "output_invalid",
            ) from None
        _check_distinct(_new_columns(job).values(), job)
        return None
    key = _key(table, job, shown)
    names = {**output.columns, "id": key, fields[1]: output.column or fields[1]}
    if not updates_existing_rows(job):
        names = {name: name for name in fields[2:] if name in table.columns} | _kept_columns(job, key) | names
    _check_distinct(names.values(), job)
    missing = sorted(column for column in names.values() if column not in table.columns)
    if missing:
        raise BatchError(
            f"the table {output.table!r} of {shown} has no column {missing[0]!r}, but has"
            f" {', '.join(column.name for column in table.columns)}; add it with"
            f" ALTER TABLE {output.table} ADD COLUMN {missing[0]} TEXT, or name another column or a new table",
            "output_invalid",
        )
    columns = {name: table.columns[column] for name, column in names.items()}
    return OutputTable(table, columns, fold=_fold(connection, columns["id"]))


def create_table(
    connection: Connection, job: Job, answers: Sequence[AnswerRecord], types: Mapping[str, Any] | None = None
) -> None:
    """Create the table for these answers, with a column for each kept value. `types`: those of fields whose type is not
    the usual one."""
    from sqlalchemy import BigInteger, Boolean, Column, Double, MetaData, Numeric, String, Table, Text

    key, *others = _new_columns(job).items()
    whole = all(type(answer.id) is int for answer in answers)
    usual = {
        "input_tokens": BigInteger(),
        "output_tokens": BigInteger(),
        "truncated": Boolean(),
        "score": Double(),
        "duration": Double(),
    }
    types = {name: usual.get(name, Text()) for name in ANSWER_FIELDS[job.task][1:]} | dict(types or {})

    def kind(name: str) -> Any:
        values = [value for answer in answers if (value := answer.kept.get(name)) is not None]
        if values and all(type(value) is bool for value in values):
            return Boolean()
        # An integer may be followed by a value that is not one.
        numbers = values and all(type(value) in (int, float) for value in values)
        return Numeric(asdecimal=False) if numbers else Text()

    lite = connection.dialect.name == "sqlite"
    # MySQL and MariaDB require a length for a key.
    text = Text() if lite or connection.dialect.name == "postgresql" else String(255)
    columns = [Column(key[1], BigInteger() if whole else text, primary_key=True, autoincrement=False)]
    columns += [Column(column, types[name] if name in types else kind(name)) for name, column in others]
    schema, name = _named(job.output)
    lock(connection, f"table {job.output.table}")
    Table(name, MetaData(), *columns, schema=schema).create(connection, checkfirst=True)


def lock(connection: Connection, name: str) -> None:
    """Wait until no other job does this in the database; until the transaction ends, others wait. PostgreSQL only:
    IF NOT EXISTS fails there if two transactions create at once."""
    from sqlalchemy import func, select

    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(f"inflight {name}"))))


def _key(table: Table, job: Job, shown: str) -> str:
    """Return the id column: as given, otherwise `id` for the job's own rows, otherwise the table's key."""
    output = job.output
    if output.key is not None:
        return output.key
    if not updates_existing_rows(job) and "id" in table.columns:
        return "id"
    keys = [column.name for column in table.primary_key.columns]
    if len(keys) != 1:
        raise BatchError(
            f"the table {output.table!r} of {shown} has no single-column key; name the column with the row ids"
            " with --id",
            "output_invalid",
        )
    return str(keys[0])


def _named(output: OutputSpec) -> tuple[str | None, str]:
    assert output.table is not None
    schema, _, name = output.table.rpartition(".")
    return schema or None, name


def _new_columns(job: Job) -> dict[str, str]:
    """Return the columns of a new table by the values that they receive; first the key."""
    output, (id_, main, *more) = job.output, ANSWER_FIELDS[job.task]
    key = output.key or id_
    named = {name: output.columns.get(name, name) for name in (main, *more)}
    return {id_: key, **named, main: output.column or named[main], **_kept_columns(job, key)}


def _kept_columns(job: Job, key: str) -> dict[str, str]:
    """Return the columns of the kept values, without those that the task's fields or the key have."""
    columns = {name: job.output.columns.get(name, name) for name in job.kept if name not in ANSWER_FIELDS[job.task]}
    return {name: column for name, column in columns.items() if column != key}


def _check_distinct(columns: Iterable[str], job: Job) -> None:
    name, times = Counter(columns).most_common(1)[0]
    if times > 1:
        raise BatchError(
            f"two values of an answer go to the column {name!r} of the table {job.output.table}; choose another"
            " --column, --write or --keep",
            "output_invalid",
        )


def _fold(connection: Connection, key: Column[Any]) -> Callable[[str], str]:
    """Return a function that maps texts to the same value if the key's collation treats them as equal (case, or
    trailing blanks): the database compares samples in a column of the key's type.
    """
    from sqlalchemy import Enum, String, false, literal_column, select, union_all

    if not isinstance(key.type, String) or isinstance(key.type, Enum):
        return str
    made = union_all(select(key.label("k")).where(false()), select(literal_column("'a'"))).subquery().c.k
    accented = union_all(select(key.label("k")).where(false()), select(literal_column("'é'"))).subquery().c.k
    blanks, case = connection.execute(select(made == literal_column("'a '"), made == literal_column("'A'"))).one()
    wide = connection.execute(select(accented == literal_column("'É'"))).scalar_one()

    def fold(text: str) -> str:
        text = text.rstrip(" ") if blanks else text
        return text.lower() if wide else text.encode().lower().decode() if case else text

    return fold


def _as_key(column: Column[Any]) -> Callable[[Any], Any]:
    try:
        kind = column.type.python_type
    except NotImplementedError:  # a column of any type
        return lambda value: value
    if kind in (int, Decimal, float):
        return _whole
    return str if kind is str else _uuid if kind is uuid.UUID else lambda value: value


def _whole(value: Any) -> int | None:
    if type(value) is str and _WHOLE.fullmatch(value):
        value = int(value)
    return value if type(value) is int and -_LARGEST <= value < _LARGEST else None


def _uuid(value: Any) -> uuid.UUID | None:
    try:
        return uuid.UUID(str(value))
    except ValueError:
        return None


def _plain(column: Column[Any], value: Any) -> Any:
    """Return a value for the column: values that are not plain are JSON, and so are values that are not texts if the
    column has texts."""
    from sqlalchemy import JSON, String

    if isinstance(column.type, JSON) or value is None:
        return value
    if isinstance(value, (dict, list)) or (isinstance(column.type, String) and not isinstance(value, str)):
        return orjson.dumps(value).decode()
    return value.replace("\0", "") if isinstance(value, str) else value
