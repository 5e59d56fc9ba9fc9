"""The table of an output: found or made, and its columns by what an answer has."""

from __future__ import annotations

import re
import uuid
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import orjson

from inflight.batch.errors import BatchError
from inflight.batch.job.spec import OutputSpec
from inflight.batch.outputs.answer_record import ANSWER_FIELDS, AnswerRecord

if TYPE_CHECKING:
    from sqlalchemy import Column, Connection, Table

_WHOLE = re.compile(r"[+-]?[0-9]+")
_LARGEST = 2**63


@dataclass(frozen=True)
class OutputTable:
    """A table, and which of its columns takes which value of an answer: `columns` by the value's name.

    `made`: in this process, by the ids that came first. `fold`: makes texts the same that the database takes for one.
    """

    table: Table
    columns: dict[str, Column[Any]]
    created_here: bool = False
    fold: Callable[[str], str] = str

    @property
    def key(self) -> Column[Any]:
        return self.columns["id"]

    def convert_id(self, said: Any) -> Any:
        """An id as the column has it; None where the column can't have such a one."""
        value = _as_key(self.key)(said)
        # Of ids that are read before there is a table nobody has looked whether two of them are one number.
        return None if self.created_here and type(value) is int and str(value) != str(said) else value

    def normalize_id(self, said: Any) -> str:
        """The same for all ids that the column takes for one, as it does with `7`, `007` and `+7` if it has numbers."""
        value = self.convert_id(said)
        if value is None:
            return str(said)
        return self.fold(value) if isinstance(value, str) else str(value)

    def row(self, answer: AnswerRecord) -> dict[str, Any]:
        """What the columns take of an answer, by their names; the id's is left out."""
        values = answer.as_dict()
        return {column.name: _plain(column, values.get(name)) for name, column in self.columns.items() if name != "id"}


def updates_existing_rows(output: OutputSpec) -> bool:
    """Whether answers go into rows that are there already."""
    return output.column is not None


def find_table(connection: Connection, output: OutputSpec, shown: str, keep: Sequence[str]) -> OutputTable | None:
    """The output's table; None where there is none yet. Raises BatchError `output_invalid` where it can't be used."""
    from sqlalchemy import MetaData, Table
    from sqlalchemy.exc import NoSuchTableError

    schema, name = _named(output)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of types that SQLAlchemy does not know, in columns that stay as they are
            table = Table(name, MetaData(), schema=schema, autoload_with=connection)
    except NoSuchTableError:
        if updates_existing_rows(output):
            raise BatchError(
                f"{shown} has no table {output.table!r}, into whose rows the answers are to go; name another, or leave"
                " out the column to have a table made",
                "output_invalid",
            ) from None
        return None
    wanted = {**output.columns, "id": _key(table, output, shown), "text": output.column or "text"}
    if not updates_existing_rows(output):
        wanted = {name: name for name in (*ANSWER_FIELDS[2:], *keep) if name in table.columns} | wanted
    missing = sorted(column for column in wanted.values() if column not in table.columns)
    if missing:
        raise BatchError(
            f"the table {output.table!r} of {shown} has no column {missing[0]!r}; it has"
            f" {', '.join(column.name for column in table.columns)}",
            "output_invalid",
        )
    columns = {name: table.columns[column] for name, column in wanted.items()}
    return OutputTable(table, columns, fold=_fold(connection, columns["id"]))


def create_table(
    connection: Connection, output: OutputSpec, answers: Sequence[AnswerRecord], keep: Sequence[str]
) -> None:
    """Make the table for such answers, with a column for each value that is kept."""
    from sqlalchemy import BigInteger, Boolean, Column, MetaData, Numeric, String, Table, Text

    whole = all(type(answer.id) is int for answer in answers)
    counts = {"input_tokens", "output_tokens"}
    types = {name: BigInteger() if name in counts else Text() for name in ANSWER_FIELDS[1:]}

    def kind(name: str) -> Any:
        values = [value for answer in answers if (value := answer.kept.get(name)) is not None]
        if values and all(type(value) is bool for value in values):
            return Boolean()
        # A whole number may be followed by one that is not.
        numbers = values and all(type(value) in (int, float) for value in values)
        return Numeric(asdecimal=False) if numbers else Text()

    lite = connection.dialect.name == "sqlite"
    # MySQL and its kin want a length for a key.
    text = Text() if lite or connection.dialect.name == "postgresql" else String(255)
    columns = [Column(output.key or "id", BigInteger() if whole else text, primary_key=True, autoincrement=False)]
    columns += [Column(_column(output, name), type_) for name, type_ in types.items()]
    columns += [Column(_column(output, name), kind(name)) for name in keep if name not in ANSWER_FIELDS]
    schema, name = _named(output)
    Table(name, MetaData(), *columns, schema=schema).create(connection, checkfirst=True)


def _key(table: Table, output: OutputSpec, shown: str) -> str:
    """The column of the ids: as the output says, else `id` where the rows are the job's own, else the table's key."""
    if output.key is not None:
        return output.key
    if not updates_existing_rows(output) and "id" in table.columns:
        return "id"
    keys = [column.name for column in table.primary_key.columns]
    if len(keys) != 1:
        raise BatchError(
            f"the table {output.table!r} of {shown} has no key of one column; name the one that has the rows' ids",
            "output_invalid",
        )
    return str(keys[0])


def _named(output: OutputSpec) -> tuple[str | None, str]:
    assert output.table is not None
    schema, _, name = output.table.rpartition(".")
    return schema or None, name


def _column(output: OutputSpec, name: str) -> str:
    return (output.column or "text") if name == "text" else output.columns.get(name, name)


def _fold(connection: Connection, key: Column[Any]) -> Callable[[str], str]:
    """What makes texts the same that differ in case, or in blanks behind them, where the key's collation takes them for
    one: the database compares some, in a column made of the key's own.
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
    except NotImplementedError:  # a column that takes anything
        return lambda said: said
    if kind in (int, Decimal, float):
        return _whole
    return str if kind is str else _uuid if kind is uuid.UUID else lambda said: said


def _whole(said: Any) -> int | None:
    if type(said) is str and _WHOLE.fullmatch(said):
        said = int(said)
    return said if type(said) is int and -_LARGEST <= said < _LARGEST else None


def _uuid(said: Any) -> uuid.UUID | None:
    try:
        return uuid.UUID(str(said))
    except ValueError:
        return None


def _plain(column: Column[Any], value: Any) -> Any:
    """What is no plain value goes in as JSON; so does what is no text, where the column has texts."""
    from sqlalchemy import JSON, String

    if isinstance(column.type, JSON) or value is None:
        return value
    if isinstance(value, (dict, list)) or (isinstance(column.type, String) and not isinstance(value, str)):
        return orjson.dumps(value).decode()
    return value.replace("\0", "") if isinstance(value, str) else value
