"""The nearest passages in a table of PostgreSQL with the extension pgvector (https://github.com/pgvector/pgvector)."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from inflight_client import InflightError

from inflight.retrieval.passages import Passage, Passages

if TYPE_CHECKING:
    from inflight_client.encodings import Vectors
    from psycopg import Connection as DriverConnection
    from sqlalchemy import Connection, Engine

Metric = Literal["cosine", "l2", "ip"]
_OPERATORS: dict[Metric, str] = {"cosine": "<=>", "l2": "<->", "ip": "<#>"}
"""pgvector's distances; `<#>` is the negative inner product."""
_VECTOR = re.compile(r"((?:.*\.)?(?:half)?vec(?:tor)?)(?:\(\d+\))?")
_MIN_EF_SEARCH, _MAX_EF_SEARCH = 100, 1000
"""Candidates that a search of an hnsw index keeps (`hnsw.ef_search`); pgvector's default is 40, its limit 1,000."""
_ITERATIVE = {"hnsw.iterative_scan": "strict_order", "ivfflat.iterative_scan": "relaxed_order"}
"""Settings of pgvector 0.8 and later: an index is read on while a filter leaves too few rows."""
_CLOSE_SECONDS = 5.0
"""Seconds for cancelled searches to end."""


class PassageTable:
    """A table or view with a vector, a text and an id for each passage. `search` is for threads; it asks with one
    statement for all questions.

    `id`: the column with the ids, by default the primary key, or `id`. `metric` must be that of the vectors' index, or
    each search reads the whole table. `lock_timeout`: seconds for which a search waits for a lock. SQLAlchemy's errors
    are raised as they are.
    """

    def __init__(
        self,
        engine: Engine,
        table: str,
        *,
        column: str = "embedding",
        text: str = "text",
        id: str | None = None,
        metric: Metric = "cosine",
        lock_timeout: float | None = None,
    ) -> None:
        self._engine, self._table = engine, table
        self._column, self._text, self._id, self._metric = column, text, id, metric
        self._lock_timeout = lock_timeout
        self.dimensions: int | None = None
        """The size of the vectors, once `check` has read it."""
        self._statement = "", ""
        """The parts before and after the limit, which is no parameter: a plan for any limit may use no index."""
        self._probes = 1
        self._iterative: dict[str, str] = {}
        self._open: set[DriverConnection[Any]] = set()
        self._closed = False

    def check(self) -> None:
        """Read the table's description. Raises InflightError (`input_not_found`, `input_invalid`) if it does not fit or
        has no vector."""
        if self._engine.dialect.name != "postgresql":
            raise InflightError("passages are retrieved from PostgreSQL with pgvector; name one", "input_invalid")
        with self._transaction() as connection:
            quote = connection.dialect.identifier_preparer.quote
            name = ".".join(quote(part) for part in self._table.split(".", 1))
            types = self._types(connection, name.replace("%%", "%"))
            key = self._id or self._primary_key(connection, name.replace("%%", "%")) or "id"
            for column in (self._column, self._text, key):
                if column not in types:
                    raise InflightError(
                        f"the table {self._table!r} has no column {column!r}; it has {', '.join(types)[:300]}",
                        "input_not_found",
                    )
            vector_type = _VECTOR.fullmatch(types[self._column])
            if vector_type is None:
                raise InflightError(
                    f"the column {self._column!r} of the table {self._table!r} has the type {types[self._column]}; name"
                    " the one with the vectors",
                    "input_invalid",
                )
            self._probes = self._ivfflat_probes(connection, name.replace("%%", "%"))
            vector, text = quote(self._column), quote(self._text)
            distance = f"{vector} {_OPERATORS[self._metric]} question.vector"
            self._statement = (
                # Materialized, so that each vector is parsed once.
                f"WITH question AS MATERIALIZED (SELECT number, CAST(vector AS {vector_type[1]}) AS vector"
                " FROM unnest(CAST(%(vectors)s AS text[])) WITH ORDINALITY AS given (vector, number))"
                " SELECT number, nearest.id, nearest.text, nearest.distance FROM question CROSS JOIN LATERAL"
                f" (SELECT {quote(key)} AS id, CAST({text} AS text) AS text, {distance} AS distance FROM {name}"
                f" WHERE {vector} IS NOT NULL AND {text} IS NOT NULL ORDER BY ({distance})",
                ") AS nearest ORDER BY number, distance, id",
            )
            first = (
                f"SELECT vector_dims({vector}) FROM {name} WHERE {vector} IS NOT NULL AND {text} IS NOT NULL"
                " LIMIT %(one)s"
            )
            row = connection.exec_driver_sql(first, {"one": 1}).first()
            if row is None:
                raise InflightError(
                    f"the table {self._table!r} has no passages with vectors; fill it with `inflight batch run --task"
                    " embed`",
                    "input_invalid",
                )
            self.dimensions = int(row[0])
            settings = connection.exec_driver_sql(  # of the extension, which that query has loaded
                "SELECT name FROM pg_settings WHERE name = ANY(%(names)s)", {"names": list(_ITERATIVE)}
            ).all()
            self._iterative = {str(setting): _ITERATIVE[setting] for (setting,) in settings}

    def check_dimensions(self, dimensions: int) -> None:
        """Raises InflightError `input_invalid` if vectors of questions have another size than those of the table."""
        if self.dimensions not in (None, dimensions):
            raise InflightError(
                f"the vectors of the table {self._table!r} have {self.dimensions} dimensions, and those of the"
                f" questions {dimensions}; embed questions with the model that embedded the passages",
                "input_invalid",
            )

    def search(self, vectors: Sequence[Vectors], top_k: int) -> list[Passages]:
        """Return the nearest `top_k` passages of each vector. `check` was called before."""
        with self._transaction() as connection:
            effort = min(max(_MIN_EF_SEARCH, 2 * top_k), _MAX_EF_SEARCH)
            for setting, value in (("hnsw.ef_search", effort), ("ivfflat.probes", self._probes)):
                connection.exec_driver_sql(  # a larger value of the database or its user is kept
                    "SELECT set_config(%(name)s, CAST(greatest(CAST(coalesce(nullif(current_setting(%(name)s, true),"
                    " ''), '1') AS int), %(value)s) AS text), true)",
                    {"name": setting, "value": value},
                )
            for setting, mode in self._iterative.items():
                _set(connection, setting, mode)
            nearest = self._nearest(connection, vectors, top_k)
            few = [place for place, passages in enumerate(nearest) if len(passages) < top_k]
            if few:  # there are no more, or a view's filter left out most of what an index found
                exact = self._nearest(connection, [vectors[place] for place in few], top_k, use_index=False)
                for place, passages in zip(few, exact, strict=True):
                    nearest[place] = passages
        return nearest

    def close(self) -> None:
        """End the searches of other threads. Later ones are refused."""
        from psycopg import OperationalError

        self._closed = True
        until = time.monotonic() + _CLOSE_SECONDS
        while self._open and time.monotonic() < until:
            for driver in list(self._open):
                with suppress(OperationalError):
                    driver.cancel_safe(timeout=1.0)
            time.sleep(0.02)  # one between two statements is cancelled in the next round

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """A transaction that `close` ends."""
        driver: Any = None
        try:
            with self._engine.begin() as connection:
                driver = connection.connection.driver_connection
                self._open.add(driver)
                if self._closed:
                    connection.detach()  # from a pool that may be disposed of already
                    raise InflightError(f"the table {self._table!r} is no longer searched", "cancelled")
                if self._lock_timeout is not None:
                    _set(connection, "lock_timeout", f"{max(1, round(self._lock_timeout * 1000))}ms")
                yield connection
        finally:
            self._open.discard(driver)  # once the connection is back in its pool: `close` returns only then

    def _nearest(
        self, connection: Connection, vectors: Sequence[Vectors], top_k: int, use_index: bool = True
    ) -> list[Passages]:
        before, after = self._statement
        texts = [str(vector.tolist()) for vector in vectors]
        order = before if use_index else f"{before} + 0"  # no index is on that
        rows = connection.exec_driver_sql(f"{order} LIMIT {top_k:d}{after}", {"vectors": texts}).all()
        by_question: list[list[Passage]] = [[] for _ in vectors]
        for number, id_, text, distance in rows:
            score = 1 - distance if self._metric == "cosine" else 0.0 - distance
            by_question[number - 1].append(Passage(id_ if type(id_) is int else str(id_), text, score))
        return [Passages(passages) for passages in by_question]

    def _types(self, connection: Connection, name: str) -> dict[str, str]:
        """Return the types of the columns."""
        rows = connection.exec_driver_sql(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = to_regclass(%(name)s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            {"name": name},
        ).all()
        if not rows:
            raise InflightError(f"the database has no table {self._table!r}; name another", "input_not_found")
        return {str(column): str(type_) for column, type_ in rows}

    def _primary_key(self, connection: Connection, name: str) -> str | None:
        """Return the column of a primary key of one column."""
        rows = connection.exec_driver_sql(
            "SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey)"
            " WHERE indrelid = to_regclass(%(name)s) AND indisprimary",
            {"name": name},
        ).all()
        return str(rows[0][0]) if len(rows) == 1 else None

    def _ivfflat_probes(self, connection: Connection, name: str) -> int:
        """Return how many lists of an ivfflat index to search: pgvector recommends the square root of their number."""
        rows = connection.exec_driver_sql(
            "SELECT CAST(substring(option FROM 7) AS int) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
            " CROSS JOIN unnest(reloptions) AS option WHERE indrelid = to_regclass(%(name)s)"
            " AND starts_with(option, 'lists=')",
            {"name": name},
        ).all()
        return max((math.ceil(math.sqrt(lists)) for (lists,) in rows), default=1)


def _set(connection: Connection, setting: str, value: str) -> None:
    """Change a setting for a transaction."""
    connection.exec_driver_sql("SELECT set_config(%(name)s, %(value)s, true)", {"name": setting, "value": value})
