"""Rows of a table or of a query."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import InputRecord, Position
from inflight.batch.job.spec import FileFormat, InputSpec, fingerprint
from inflight.batch.sources.interface import RowSource
from inflight.batch.storage.database_engine import (
    LOCK_TIMEOUT,
    create_database_engine,
    database_error_text,
    is_sqlite,
    sqlstate,
)
from inflight.batch.storage.secret_address import masked

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, FromClause

_READ: dict[str, Callable[[str], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "uuid": UUID,
    "decimal": Decimal,
    "bytes": bytes.fromhex,
}


def key_to_json(values: tuple[Any, ...]) -> list[Any]:
    """Convert key values: numbers and texts unchanged, others as type and text. Raises BatchError `input_invalid`."""
    return [_key_value(value) for value in values]


def key_from_json(values: list[Any]) -> tuple[Any, ...]:
    """Return what `key_to_json` was given."""
    return tuple(_READ[value[0]](value[1]) if isinstance(value, list) else value for value in values)


def _key_value(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        raise BatchError(f"a row has the key {value}; name a column without such values with --id", "input_invalid")
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime):
        return ["datetime", value.isoformat()]
    if isinstance(value, date):
        return ["date", value.isoformat()]
    if isinstance(value, UUID | Decimal):
        return [type(value).__name__.lower(), str(value)]
    if isinstance(value, bytes | memoryview):
        return ["bytes", bytes(value).hex()]
    raise BatchError(
        f"a row's key is a {type(value).__name__}; name a column of numbers or texts with --id", "input_invalid"
    )


_PAGE = 500
"""Rows per short read."""


class _Range(NamedTuple):
    """The range that a job reads: the number of rows, and the last key."""

    rows: int
    last: tuple[Any, ...] | None


class SqlSource(RowSource):
    """Rows in the order of their key, in short reads that each continue after the last key of the previous one. So
    nothing is locked in between, and answers can be written to the same table. A position is a row's key.

    The key is the table's primary key, SQLite's `rowid`, or the column of ids if its values are unique. Rows after the
    last key at the start of the job (`bound_fingerprint`) are not read. Rows that are inserted with lower keys (such as
    UUIDs) are read if reading has not passed them; but then the job cannot be resumed, since all later row numbers have
    changed.
    """

    format: FileFormat = "sql"

    def __init__(self, spec: InputSpec, needed: frozenset[str] | None = None, bound_fingerprint: str = "") -> None:
        self._database = SourceDatabase(spec.address)
        self._spec = spec
        self._what = f"the table {spec.table}" if spec.query is None else "the query"
        self._rows, columns, self._keys = self._table() if spec.query is None else self._query(spec.query)
        self.columns = columns
        own_key = len(self._keys) == 1 and self._keys[0] in columns
        self.key_column = self._keys[0] if own_key else None
        self._read = [name for name in columns if needed is None or name in needed or name in self._keys]
        named = f"sql:{fingerprint([self._database.name, spec.table, spec.query, self._keys])}:"
        if bound_fingerprint.startswith(named):
            rows, last = json.loads(bound_fingerprint.removeprefix(named))
            self._range = _Range(rows, None if last is None else key_from_json(last))
        else:
            self._range = self._whole_range()
        self.total = self._range.rows
        last = None if self._range.last is None else key_to_json(self._range.last)
        self.fingerprint = named + json.dumps([self._range.rows, last], separators=(",", ":"))

    def check_unchanged(self) -> None:
        if self._range.last is not None:
            self._check_rest(None, 0)

    def read(self, after: Position | None = None, line: int = 0) -> Iterator[InputRecord]:
        from sqlalchemy import select

        if self._range.last is None:
            return
        key = None if after is None else key_from_json(cast("list[Any]", after))
        if key is not None:
            self._check_rest(key, line)
        columns = [self._column(name) for name in self._read]
        order = [self._column(name) for name in self._keys]
        while True:
            page = select(*columns, *order).select_from(self._rows).where(self._within(key)).order_by(*order)
            with self._database.reading() as connection:
                rows = connection.execute(page.limit(_PAGE)).fetchall()
            for row in rows:
                line += 1
                key = tuple(row[len(columns) :])
                yield InputRecord(line, dict(zip(self._read, row, strict=False)), key_to_json(key))
            if len(rows) < _PAGE:
                return

    def _table(self) -> tuple[FromClause, list[str], list[str]]:
        """Return the table, its columns, and those of its key."""
        from sqlalchemy import column, inspect, table
        from sqlalchemy.exc import NoSuchTableError

        schema, _, name = (self._spec.table or "").rpartition(".")
        with self._database.reading() as connection:
            inspector = inspect(connection)
            there = [*inspector.get_table_names(schema or None), *inspector.get_view_names(schema or None)]
            if not name:
                raise BatchError(
                    f"{self._database.shown} is a database; name a table of it with --table ({_listed(there)})",
                    "input_not_found",
                )
            try:
                columns = [each["name"] for each in inspector.get_columns(name, schema or None)]
                keys = list(inspector.get_pk_constraint(name, schema or None)["constrained_columns"])
            except NoSuchTableError:
                raise BatchError(
                    f"{self._database.shown} has no table {self._spec.table!r}; it has {_listed(there)}",
                    "input_not_found",
                ) from None
            is_table = name in inspector.get_table_names(schema or None)
        rows = table(name, *map(column, columns), schema=schema or None)
        self._check_id(columns)
        if keys:
            return rows, columns, keys
        if self._spec.id is not None:
            return rows, columns, [self._spec.id]
        if self._database.is_sqlite and is_table:
            return rows, columns, ["rowid"]
        raise BatchError(
            f"{self._what} has no primary key; name a column of unique values with --id ({_listed(columns)})",
            "input_invalid",
        )

    def _query(self, query: str) -> tuple[FromClause, list[str], list[str]]:
        """Return the query's rows, their columns, and the one of the key."""
        from sqlalchemy import column, select, text

        if self._spec.table is not None:
            raise BatchError("the input is either a table or a query; leave one of them out", "input_invalid")
        if self._spec.id is None:
            raise BatchError("a query needs a column of unique values; name it with --id", "input_invalid")
        bare = text(query.strip().rstrip(";").replace(":", "\\:"))
        whole = bare.columns().subquery("the_rows")
        with self._database.reading() as connection:
            columns = list(connection.execute(select(text("*")).select_from(whole).limit(0)).keys())
        self._check_id(columns)
        return bare.columns(*map(column, columns)).subquery("the_rows"), columns, [self._spec.id]

    def _check_id(self, columns: list[str]) -> None:
        if self._spec.id is not None and self._spec.id not in columns:
            raise BatchError(
                f"{self._what} has no column {self._spec.id!r}; it has {_listed(columns)}", "input_not_found"
            )

    def _whole_range(self) -> _Range:
        """Return the range up to the current last key. Raises BatchError if keys are not unique."""
        from sqlalchemy import distinct, func, select

        keys = [self._column(name) for name in self._keys]
        is_id = len(keys) == 1 and self._keys[0] == self._spec.id
        with self._database.reading() as connection:
            keyed = func.count(distinct(keys[0]) if is_id else keys[0])
            rows, usable = connection.execute(select(func.count(), keyed).select_from(self._rows)).one()
            if rows != usable:
                raise BatchError(
                    f"{rows - usable} of the {rows} rows of {self._what} have no unique value in the column "
                    f"{self._keys[0]!r}; name a column of unique values with --id",
                    "input_invalid",
                )
            last = select(*keys).select_from(self._rows).order_by(*(key.desc() for key in keys)).limit(1)
            row = connection.execute(last).first()
        return _Range(rows, None if row is None else tuple(row))

    def _check_rest(self, key: tuple[Any, ...] | None, line: int) -> None:
        """Check the number of remaining rows, since additions or removals change the numbers that identify rows."""
        from sqlalchemy import func, select

        counted = select(func.count()).select_from(self._rows).where(self._within(key))
        with self._database.reading() as connection:
            rest = connection.execute(counted).scalar_one()
        if rest != self._range.rows - line:
            behind = f" after row {line}" if line else ""
            raise BatchError(
                f"{self._what} has {rest} rows{behind}, but had {self._range.rows - line} when the job began; rows were"
                " added with keys below the last one, or removed, or no longer match the query: start a new job, with "
                "a --query that returns the same rows each time (WHERE created < ...)",
                "input_changed",
            )

    def _within(self, key: tuple[Any, ...] | None) -> ColumnElement[bool]:
        """Return the condition for rows after a key, up to the last one."""
        from sqlalchemy import and_, literal, tuple_

        assert self._range.last is not None
        columns: Any = tuple_(*map(self._column, self._keys)) if len(self._keys) > 1 else self._column(self._keys[0])

        def value(values: tuple[Any, ...]) -> Any:
            return tuple_(*map(literal, values)) if len(values) > 1 else values[0]

        upper = columns <= value(self._range.last)
        return upper if key is None else and_(columns > value(key), upper)

    def _column(self, name: str) -> Any:
        from sqlalchemy import literal_column

        return self._rows.c[name] if name in self._rows.c else literal_column(name)


def _listed(names: list[str]) -> str:
    return ", ".join(names)[:300] if names else "nothing"


_HELD = ("SQLITE_BUSY", "SQLITE_LOCKED")


class SourceDatabase:
    """A database to read from. Raises BatchError: `input_not_found`, `input_invalid`, `package_missing`,
    `storage_denied`, `storage_unreachable`.
    """

    def __init__(self, address: str) -> None:
        self._address, self.shown = address, masked(address)
        # A new connection for each read: sources are not closed, and a server need not wait for the next page.
        self._engine = create_database_engine(address, "input_invalid", pooled=False)
        self.is_sqlite = is_sqlite(self._engine)
        from sqlalchemy import event

        if self.is_sqlite:
            # SQLAlchemy would create an empty database if the file is missing.
            if not self._engine.url.database or not Path(self._engine.url.database).is_file():
                raise BatchError(f"there is no database {self.shown}; check the path", "input_not_found")
            event.listen(self._engine, "connect", _take_any_text)
        elif self._engine.dialect.driver == "psycopg":
            event.listen(self._engine, "connect", _take_any_time)
        self.name = str(self._engine.url.database or "")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection for a short read; afterwards nothing is locked."""
        from sqlalchemy.exc import DBAPIError, SQLAlchemyError

        try:
            with self._engine.connect() as connection:
                yield connection
        except DBAPIError as error:
            raise self._to_batch_error(error) from error
        except SQLAlchemyError as error:
            raise BatchError(
                f"{self.shown} can't be read: {database_error_text(self._address, error)}", "input_invalid"
            ) from error

    def _to_batch_error(self, error: Any) -> BatchError:
        words, state = database_error_text(self._address, error.orig or error), sqlstate(error)
        if state.startswith("28") or state == "42501":
            return BatchError(
                f"{self.shown} refuses access ({words}); give the name and password of a user who may read it",
                "storage_denied",
            )
        lost = type(error).__name__ in ("OperationalError", "InterfaceError")
        if lost and not self.is_sqlite and not state.startswith("42"):
            return BatchError(
                f"{self.shown} can't be reached ({words}); check its address, or try again later",
                "storage_unreachable",
            )
        if getattr(error.orig, "sqlite_errorname", "").startswith(_HELD):
            return BatchError(
                f"another program has locked {self.shown} for {LOCK_TIMEOUT:g} seconds ({words}); end that program or "
                f"wait for it",
                "storage_unreachable",
            )
        return BatchError(f"{self.shown} can't be read: {words}", "input_invalid")


def _take_any_text(connection: Any, _: Any) -> None:
    """Let a text that is not UTF-8 fail only its row; by default the driver would refuse all rows."""
    connection.text_factory = _text


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _take_any_time(connection: Any, _: Any) -> None:
    """Read times that Python does not have (infinity, years BC, 24:00) as text; the driver would refuse all rows."""
    from psycopg import DataError
    from psycopg.types import datetime as types

    def tolerant(loader: Any) -> Any:
        def load(self: Any, data: Any) -> Any:
            try:
                return loader.load(self, data)
            except (DataError, OverflowError):
                return bytes(data).decode()

        return type(loader.__name__, (loader,), {"load": load})

    for name in ("Date", "Time", "Timetz", "Timestamp", "Timestamptz", "Interval"):
        connection.adapters.register_loader(name.lower(), tolerant(getattr(types, f"{name}Loader")))
