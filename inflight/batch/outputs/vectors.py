"""Embeddings in a PostgreSQL table, in a column of the extension pgvector (https://github.com/pgvector/pgvector).

Each transaction copies its rows to a temporary table (COPY, binary) and moves them with one statement.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import orjson

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import Job
from inflight.batch.outputs import table as tables
from inflight.batch.outputs.answer_record import AnswerRecord, same_content, vector_of
from inflight.batch.outputs.interface import OnMessage, ignore_message
from inflight.batch.outputs.sql import TableOutput
from inflight.batch.outputs.table import OutputTable

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy import Connection

_STAGING = f"inflight_{uuid.uuid4().hex}"
"""The temporary table, whose name hides no other: temporary tables are found first."""
_VECTOR = re.compile(r"(?:.*\.)?vector(?:\((\d+)\))?")
_MAX_INDEXED = 2000
"""Most dimensions of a `vector` in an index of pgvector."""
_TEXTS = ("text", "character varying", "character(", "bpchar")
"""Types that a text is assigned to: a cast would cut it."""
_OPERATORS = {"cosine": "vector_cosine_ops", "l2": "vector_l2_ops", "ip": "vector_ip_ops"}
_INDEX_MEMORY_MB = 64, 2048
"""Least and most memory to build an index with."""
_HEADER, _TRAILER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0), struct.pack(">h", -1)
"""https://www.postgresql.org/docs/current/sql-copy.html, binary format."""


@dataclass(frozen=True)
class VectorTable(OutputTable):
    """A table for embeddings. `types`: those of its columns by name. `updates_only`: no row is inserted."""

    types: Mapping[str, str] = field(default_factory=dict)
    updates_only: bool = False


class VectorTableOutput(TableOutput):
    """Writes embeddings. The row with an embedding's id is updated, and a missing one is inserted, except in the table
    that the job reads. The table is created if it does not exist; its index is built at the end.
    """

    def __init__(self, job: Job) -> None:
        assert job.encode is not None
        super().__init__(job)
        self._encode = job.encode

    def check(self) -> None:
        if self._database.dialect != "postgresql":
            raise BatchError(
                f"{self._database.shown} can't store embeddings: they need PostgreSQL with pgvector, or a file of"
                " Parquet or JSON lines",
                "output_invalid",
            )
        super().check()
        if self._encode.dimensions is not None:
            self.check_dimensions(self._encode.dimensions)

    def check_dimensions(self, dimensions: int) -> None:
        """Raises BatchError `output_invalid` if the column has another size, an index over it is impossible, or rows
        can't be written."""
        if self._encode.index != "none" and dimensions > _MAX_INDEXED:
            raise BatchError(
                f"embeddings of {dimensions:,} dimensions can't be indexed, at most {_MAX_INDEXED:,}; reduce them with"
                " --dimensions, or use --index none",
                "output_invalid",
            )
        self._database.run(self._create_extension)
        self._database.run(partial(self._try_write, dimensions=dimensions))

    def _try_write(self, connection: Connection, dimensions: int) -> None:
        """Create the table if it does not exist, and write no rows, which checks all privileges; roll that back."""
        with connection.begin_nested() as trial:
            target = self._read_table(connection)
            if target is None:
                tables.create_table(connection, self._job, [], _vector_type(dimensions))
                target = self._read_table(connection)
                assert target is not None
            self._check_column(target, dimensions)
            self._stage_and_move(connection, target, [])
            trial.rollback()

    def _check_column(self, target: VectorTable, dimensions: int) -> None:
        column = target.columns["embedding"].name
        vector_type = _VECTOR.fullmatch(target.types[column])
        size = vector_type[1] if vector_type else None
        if vector_type and (size == str(dimensions) or (size is None and self._encode.index == "none")):
            return
        remedy = "set its size" if vector_type and size is None else "choose another column"
        raise BatchError(
            f"the column {column!r} of the table {self._output.table} has the type {target.types[column]}, but the"
            f" embeddings need vector({dimensions}); {remedy}, or write to a new table",
            "output_invalid",
        )

    def finalize(self, files: dict[RowStatus, Path], on_message: OnMessage = ignore_message) -> list[str]:
        """Write what is missing, and build the index unless there is one."""
        written = super().finalize(files)
        if self._encode.index != "none":
            try:
                self._database.run(partial(self._build_index, on_message=on_message))
            except BatchError as error:
                # Workers share memory that may be small (/dev/shm of a container); one process needs none.
                if error.code != "disk_full":
                    raise
                self._database.run(partial(self._build_index, on_message=on_message, workers=0))
        return written

    def _find_table(self, connection: Connection) -> VectorTable | None:
        return cast("VectorTable | None", super()._find_table(connection))

    def _read_table(self, connection: Connection) -> VectorTable | None:
        """Read the columns' types too, and check that rows can be inserted."""
        from sqlalchemy import text

        target = super()._read_table(connection)
        if target is None:
            return None
        columns = text(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = ''"
            " FROM pg_attribute WHERE attrelid = CAST(:name AS regclass) AND attnum > 0 AND NOT attisdropped"
        )
        attributes = connection.execute(columns, {"name": _quoted(connection, target)}).all()
        types = {name: type_ for name, type_, _ in attributes}
        written = {column.name for column in target.columns.values()}
        required = [name for name, _, needed in attributes if needed and name not in written]
        queried = self._job.input.query is not None and self._job.input.address == self._output.address
        updates_only = tables.updates_existing_rows(self._job) or (bool(required) and queried)
        described = VectorTable(target.table, target.columns, fold=target.fold, types=types, updates_only=updates_only)
        if updates_only:
            return described
        if required:
            raise BatchError(
                f"the table {self._output.table} requires a value for its column {required[0]!r}, which new rows lack;"
                f" add it with --keep {required[0]}, or give the column a default",
                "output_invalid",
            )
        unique = text(
            "SELECT count(*) FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]"
            " WHERE indrelid = CAST(:name AS regclass) AND indisunique AND indimmediate AND indpred IS NULL"
            " AND indnkeyatts = 1 AND attname = :key"
        )
        names = {"name": _quoted(connection, target), "key": target.key.name}
        if not connection.execute(unique, names).scalar_one():
            raise BatchError(
                f"the column {target.key.name!r} of the table {self._output.table} is not unique, or is DEFERRABLE, so"
                " that rows could be written twice; make it the primary key",
                "output_invalid",
            )
        return described

    def _create_extension(self, connection: Connection) -> None:
        from sqlalchemy import text
        from sqlalchemy.exc import DBAPIError

        tables.lock(connection, "extension")
        schema = text("SELECT CAST(extnamespace AS regnamespace) FROM pg_extension WHERE extname = 'vector'")
        try:
            if (there := connection.execute(schema).scalar()) is None:
                connection.execute(text("CREATE EXTENSION vector"))
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            raise BatchError(
                f"{self._database.shown} has no extension pgvector, and this user can't create it; ask the database's"
                " administrator to install pgvector and to run CREATE EXTENSION vector",
                "output_invalid",
            ) from error
        if connection.execute(text("SELECT to_regtype('vector')")).scalar() is None:
            raise BatchError(
                f"pgvector is in the schema {there} of {self._database.shown}, which this user's search_path lacks; add"
                " it with ALTER ROLE … SET search_path",
                "output_invalid",
            )
        method = self._encode.index
        query = text("SELECT count(*) FROM pg_am WHERE amname = :method")
        if method != "none" and not connection.execute(query, {"method": method}).scalar_one():
            raise BatchError(
                f"the pgvector of {self._database.shown} has no index {method}; update it, or choose another --index",
                "output_invalid",
            )

    def _column_types(self, answers: list[AnswerRecord]) -> dict[str, Any]:
        return _vector_type(len(vector_of(answers[0].content)))

    def _write(self, connection: Connection, answers: list[AnswerRecord]) -> None:
        if self._find_table(connection) is None:
            self._create_extension(connection)
        target = cast("VectorTable", self._table_for(connection, answers))
        by_key = self._by_key(target, answers)
        if target.updates_only:
            rows = [(str(answer.id), answer) for answer in by_key.values() if target.convert_id(answer.id) is not None]
        else:
            rows = [(str(self._new_id(target, answer)), answer) for answer in by_key.values()]
        self._stage_and_move(connection, target, rows)
        if target.updates_only:
            there = self._existing_ids(connection, target, answers)
            self._count_missing([answer.id for key, answer in by_key.items() if key not in there])

    def _stage_and_move(
        self, connection: Connection, target: VectorTable, rows: Sequence[tuple[str, AnswerRecord]]
    ) -> None:
        """Copy the answers, each with its id as a text, to a temporary table, and from there to the target."""
        names = list(target.columns)
        types = (f"c{place} {'vector' if name == 'embedding' else 'text'}" for place, name in enumerate(names))
        _execute(connection, f"CREATE TEMPORARY TABLE {_STAGING} ({', '.join(types)}) ON COMMIT DROP")
        copied = (_copied_row(target, names, key, answer) for key, answer in rows)
        with _cursor(connection) as cursor, cursor.copy(f"COPY {_STAGING} FROM STDIN (FORMAT BINARY)") as copy:
            copy.write(b"".join((_HEADER, *copied, _TRAILER)))
        self._move(connection, target, {name: f"c{place}" for place, name in enumerate(names)})

    def _move(self, connection: Connection, target: VectorTable, fields: dict[str, str]) -> None:
        """Write the staged rows to the table. `fields`: the column of the staging table by the answer's field."""
        quote = partial(_quoted_name, connection)
        columns = {name: quote(column.name) for name, column in target.columns.items()}
        values = {name: _assigned(field, target.types[target.columns[name].name]) for name, field in fields.items()}
        table = _quoted(connection, target)
        if target.updates_only:
            changes = ", ".join(f"{columns[name]} = {values[name]}" for name in fields if name != "id")
            key = f"{table}.{columns['id']} = {_cast(fields['id'], target.types[target.key.name])}"
            _execute(connection, f"UPDATE {table} SET {changes} FROM {_STAGING} WHERE {key}")
            return
        changes = ", ".join(f"{columns[name]} = EXCLUDED.{columns[name]}" for name in fields if name != "id")
        _execute(
            connection,
            f"INSERT INTO {table} ({', '.join(columns[name] for name in fields)})"
            f" SELECT {', '.join(values.values())} FROM {_STAGING}"
            f" ON CONFLICT ({columns['id']}) DO UPDATE SET {changes}",
        )

    def _is_same(self, target: OutputTable, answer: AnswerRecord, stored: Any) -> bool:
        return stored is not None and same_content(orjson.loads(stored), answer.content, "embed")

    def _build_index(self, connection: Connection, on_message: OnMessage, workers: int | None = None) -> None:
        """Build the index, in this transaction. A process that was killed may have left a server building it: the lock
        waits for that."""
        from sqlalchemy import func, select, text

        target = self._find_table(connection)
        if target is None:
            return
        encode, column = self._encode, target.columns["embedding"].name
        table, operators = _quoted(connection, target), _OPERATORS[encode.metric]
        _set(connection, "statement_timeout", "0")
        tables.lock(connection, f"index {table}")
        existing = text(
            "SELECT count(*) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam"
            " JOIN pg_opclass ON pg_opclass.oid = indclass[0]"
            " JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]"
            " WHERE indrelid = CAST(:name AS regclass) AND attname = :column AND amname = :method"
            " AND opcname = :operators AND indisvalid AND indpred IS NULL"
        )
        parameters = {"name": table, "column": column, "method": encode.index, "operators": operators}
        if connection.execute(existing, parameters).scalar_one():
            return
        rows = connection.execute(select(func.count()).select_from(target.table)).scalar_one()
        on_message(f"Building the {encode.index} index of {self._output.table}.{column} over {rows:,} rows.")
        size = int((_VECTOR.fullmatch(target.types[column]) or [0, 0])[1] or 0)
        least, most = _INDEX_MEMORY_MB
        current = text("SELECT CAST(setting AS bigint) FROM pg_settings WHERE name = 'maintenance_work_mem'")
        kilobytes = max(least, min(most, rows * (size * 4 + 512) // 2**20)) * 1024
        _set(connection, "maintenance_work_mem", f"{max(kilobytes, connection.execute(current).scalar_one())}kB")
        _set(connection, "client_connection_check_interval", "1s")  # a build whose job was killed ends
        if workers is not None:
            _set(connection, "max_parallel_maintenance_workers", str(workers))
        # pgvector's recommended number of lists for so many rows
        lists = max(1, rows // 1000 if rows <= 1_000_000 else round(rows**0.5))
        options = f" WITH (lists = {lists})" if encode.index == "ivfflat" else ""
        quoted = _quoted_name(connection, column)
        _execute(connection, f"CREATE INDEX ON {table} USING {encode.index} ({quoted} {operators}){options}")


def _vector_type(dimensions: int) -> dict[str, Any]:
    """Return the type of a new table's column for embeddings."""
    from sqlalchemy.types import UserDefinedType

    class Vector(UserDefinedType[Any]):
        def get_col_spec(self, **_: Any) -> str:
            return f"vector({dimensions})"

    return {"embedding": Vector()}


def _set(connection: Connection, name: str, value: str) -> None:
    """Change a setting for this transaction, where the server's version has it."""
    from sqlalchemy import text

    chosen = text("SELECT set_config(name, :value, true) FROM pg_settings WHERE name = :name")
    connection.execute(chosen, {"name": name, "value": value})


def _quoted(connection: Connection, target: OutputTable) -> str:
    return connection.dialect.identifier_preparer.format_table(target.table).replace("%%", "%")


def _quoted_name(connection: Connection, name: str) -> str:
    """Return the name for statements without parameters, in which SQLAlchemy's %% would be two characters."""
    return connection.dialect.identifier_preparer.quote(name).replace("%%", "%")


def _assigned(field: str, type_: str) -> str:
    """Return the expression for a staged value that is assigned to a column of this type."""
    return field if type_.startswith(_TEXTS) else _cast(field, type_)


def _cast(field: str, type_: str) -> str:
    return f"CAST({field} AS {type_})"


def _copied_row(target: OutputTable, names: Sequence[str], key: str, answer: AnswerRecord) -> bytes:
    """Return a row in COPY's binary format: each value with its length before it, -1 for NULL."""
    from sqlalchemy import JSON

    values = target.row(answer)
    parts = [struct.pack(">h", len(names))]
    for name in names:
        if name == "embedding":
            vector = vector_of(answer.content)
            parts += (struct.pack(">ihh", 4 + 4 * len(vector), len(vector), 0), vector.astype(">f4").tobytes())
            continue
        value = key if name == "id" else values[target.columns[name].name]
        if value is None:
            parts.append(struct.pack(">i", -1))
            continue
        is_text = isinstance(value, str) and not isinstance(target.columns[name].type, JSON)
        data = value.encode() if is_text else orjson.dumps(value)
        parts += (struct.pack(">i", len(data)), data)
    return b"".join(parts)


def _execute(connection: Connection, statement: str) -> None:
    """Execute a statement without parameters, in which % is no placeholder."""
    with _cursor(connection) as cursor:
        cursor.execute(statement)


@contextmanager
def _cursor(connection: Connection) -> Iterator[psycopg.Cursor]:
    """Yield the driver's cursor in the connection's transaction, and raise its errors as SQLAlchemy does."""
    import psycopg
    from sqlalchemy.exc import DBAPIError

    driver = cast("psycopg.Connection", connection.connection.dbapi_connection)
    try:
        with driver.cursor() as cursor:
            yield cursor
    except psycopg.Error as error:
        raise DBAPIError.instance("COPY", None, error, psycopg.Error) from error
