"""Embeddings in a real PostgreSQL: what fits, what is refused, and what two processes do at once."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from sqlalchemy import Engine, event

from inflight.batch.errors import BatchError
from inflight.batch.job.spec import EncodeSpec, InputSpec, Job, OutputSpec
from inflight.batch.outputs.vectors import VectorTableOutput
from inflight.batch.signals import StopEarlyError, StopSignals
from tests.batch.outputs.answers import files
from tests.batch.outputs.shop import Shop
from tests.batch.scripted_backend import vector_of
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until


def line(id_: Any, text: str, **kept: Any) -> bytes:
    vector = base64.b64encode(vector_of(text).tobytes()).decode()
    return orjson.dumps({"id": id_, "embedding": vector, "input_tokens": 3, "truncated": False, **kept})


def output(
    database: Shop,
    keep: tuple[str, ...] = (),
    table: str = "docs",
    column: str | None = None,
    source: InputSpec | None = None,
    guest: str = "",
    **encode: Any,
) -> VectorTableOutput:
    """An output that is closed with its database; `guest`: the user who writes."""
    address = database.address.replace("inflight@", f"{guest}@") if guest else database.address
    job = Job(
        input=source or InputSpec(address="rows.jsonl", keep=keep),
        output=OutputSpec(address=address, table=table, column=column),
        encode=EncodeSpec(task="embed", **encode),
    )
    return database.opened(VectorTableOutput(job))


def test_values_of_all_types_are_copied(database: Shop) -> None:
    database.do(
        "CREATE EXTENSION vector",
        "CREATE TABLE docs (id UUID PRIMARY KEY, embedding vector(8), note VARCHAR(9), price NUMERIC(6, 2),"
        " fresh BOOLEAN, tags JSONB, day DATE)",
    )
    uuid = "0f7f6d6c-66a3-4c5c-8d5a-0a3f0f6b9c11"
    destination = output(database, ("note", "price", "fresh", "tags", "day"))
    destination.check()
    destination.check_dimensions(8)
    values = {"note": "té\\N\t1%", "price": 2.5, "fresh": True, "tags": ["a", {"b": None}], "day": "2026-08-01"}
    destination.write_rows([line(uuid.upper(), "old", **values)])
    destination.write_rows([line(uuid, "new", **{**values, "note": None})])
    ((vector, *rest),) = database.rows("SELECT embedding::text, note, price, fresh, tags::text, day::text FROM docs")
    assert np.array_equal(np.float32(json.loads(vector)), vector_of("new"))
    assert [str(value) for value in rest] == ["None", "2.50", "True", '["a", {"b": null}]', "2026-08-01"]
    with raises(BatchError, "output_invalid", naming="varying(9)"):
        destination.write_rows([line(uuid, "new", **{**values, "note": "much too long"})])
    with raises(BatchError, "output_invalid", naming="no uuid"):
        destination.write_rows([line("no uuid", "x", **values)])


def test_a_text_in_a_column_of_json_stays_a_text(database: Shop) -> None:
    database.do(
        "CREATE EXTENSION vector",
        "CREATE TABLE docs (id INT PRIMARY KEY, embedding vector(8), one JSON, two JSONB)",
    )
    destination = output(database, ("one", "two"))
    kept = [{"one": value, "two": value} for value in ("abc", "12", "null", '"', 12)]
    destination.write_rows([line(number, "tea", **values) for number, values in enumerate(kept)])
    assert [{"one": json, "two": two} for json, two in database.rows("SELECT one, two FROM docs ORDER BY id")] == kept


def test_a_table_with_the_name_of_our_own_is_written(database: Shop) -> None:
    table = "inflight_embeddings"
    destination = output(database, table=table)
    destination.check()
    destination.check_dimensions(8)  # creates a table, but not for long: its ids would be numbers
    for text in ("old", "new"):
        destination.write_rows([line("a text", text)])
    ((vector,),) = database.rows(f"SELECT embedding::text FROM public.{table}")
    assert np.array_equal(np.float32(json.loads(vector)), vector_of("new"))


def test_an_index_that_is_there_is_kept_and_two_processes_build_one(database: Shop, tmp_path: Path) -> None:
    lines = [line(n, f"text {n}") for n in range(50)]
    first = output(database)
    first.write_rows(lines)
    written = files(tmp_path, lines)
    messages: list[str] = []
    others = [output(database) for _ in range(2)]
    threads = [threading.Thread(target=output_.finalize, args=(written, messages.append)) for output_ in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(messages) == 1
    first.finalize(written, messages.append)
    assert len(messages) == 1
    assert database.rows("SELECT count(*) FROM pg_indexes WHERE indexdef LIKE '%USING hnsw%'") == [(1,)]


def test_a_dimension_that_can_not_be_indexed_is_refused(database: Shop) -> None:
    for index, fits in (("hnsw", False), ("none", True)):
        destination = output(database, index=index)
        destination.check()
        if fits:
            destination.check_dimensions(2001)
        else:
            with raises(BatchError, "output_invalid", naming="2,001"):
                destination.check_dimensions(2001)
    with raises(BatchError, "output_invalid", naming="2,500"):
        output(database, dimensions=2500).check()


def before_an_index_is_built(database: Shop, statement: str) -> None:
    """Execute a statement of PL/pgSQL then."""
    database.do(
        f"CREATE FUNCTION first() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN {statement}; END'",
        "CREATE EVENT TRIGGER first ON ddl_command_start WHEN TAG IN ('CREATE INDEX') EXECUTE FUNCTION first()",
    )


def name_of(database: Shop) -> str:
    return database.address.partition("@/")[2].partition("?")[0]


def test_a_signal_ends_the_build_of_an_index(database: Shop, tmp_path: Path) -> None:
    lines = [line(1, "one")]
    destination = output(database)
    destination.write_rows(lines)
    before_an_index_is_built(database, "PERFORM pg_sleep(60)")
    building = (
        "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'CREATE INDEX%'"
        " AND datname = current_database()"
    )

    def send() -> None:
        wait_until(lambda: database.rows(building))
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=send)
    messages: list[str] = []
    sender.start()
    with StopSignals().caught(), pytest.raises(StopEarlyError):
        destination.finalize(files(tmp_path, lines), messages.append)
    sender.join()
    wait_until(lambda: not database.rows(building), seconds=50)  # long before it would end by itself
    assert len(messages) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX docs_embedding_hnsw_cosine ON docs_old USING hnsw (embedding vector_cosine_ops)",
        "ALTER DATABASE {} SET statement_timeout = '200ms'",
    ],
)
def test_an_index_is_built_whatever_the_database_has(statement: str, database: Shop, tmp_path: Path) -> None:
    database.do(
        "CREATE EXTENSION vector", "CREATE TABLE docs_old (embedding vector(8))", statement.format(name_of(database))
    )
    before_an_index_is_built(database, "PERFORM pg_sleep(0.3)")
    lines = [line(1, "one")]
    destination = output(database)
    destination.write_rows(lines)
    messages: list[str] = []
    destination.finalize(files(tmp_path, lines), messages.append)
    assert len(messages) == 1
    assert database.rows("SELECT count(*) FROM pg_indexes WHERE tablename = 'docs' AND indexdef LIKE '%hnsw%'") == [
        (1,)
    ]


def test_an_index_is_built_with_the_memory_that_the_database_allows(database: Shop, tmp_path: Path) -> None:
    database.do(
        "CREATE TABLE seen (memory TEXT)", f"ALTER DATABASE {name_of(database)} SET maintenance_work_mem = '100MB'"
    )
    before_an_index_is_built(database, "INSERT INTO seen SELECT current_setting(''maintenance_work_mem'')")
    lines = [line(1, "one")]
    destination = output(database)
    destination.write_rows(lines)
    destination.finalize(files(tmp_path, lines))
    assert database.rows("SELECT memory FROM seen") == [("100MB",)]


def test_a_pgvector_without_the_index_is_refused(database: Shop) -> None:
    database.do(
        "CREATE EXTENSION vector",
        "ALTER EXTENSION vector DROP ACCESS METHOD hnsw",
        *(
            f"ALTER EXTENSION vector DROP OPERATOR {kind} vector_{name}_ops USING hnsw"
            for name in ("cosine", "l2", "ip")
            for kind in ("CLASS", "FAMILY")
        ),
        "DROP ACCESS METHOD hnsw CASCADE",
    )
    with raises(BatchError, "output_invalid", naming="hnsw"):
        output(database).check_dimensions(8)
    output(database, index="none").check_dimensions(8)


def test_rows_that_can_not_be_inserted_are_refused_unless_a_query_may_have_read_them(database: Shop) -> None:
    database.do(
        "CREATE EXTENSION vector",
        "CREATE TABLE texts (id INT PRIMARY KEY, text TEXT)",
        "CREATE TABLE docs (id INT PRIMARY KEY, title TEXT NOT NULL, embedding vector(8))",
    )
    of_table = output(database, source=InputSpec(address=database.address, table="texts"))
    of_query = output(database, source=InputSpec(address=database.address, query="SELECT id, text FROM texts", id="id"))
    with raises(BatchError, "output_invalid", naming="title"):
        of_table.check()
    of_query.check()
    of_query.write_rows([line(1, "one")])
    assert len(of_query.notes()) == 1


@pytest.mark.parametrize(
    ("statements", "options", "named"),
    [
        ((), {}, "CREATE EXTENSION vector"),
        (("CREATE SCHEMA ext", "CREATE EXTENSION vector SCHEMA ext"), {}, "ext"),
        (("CREATE EXTENSION vector", "CREATE TABLE docs (id INT PRIMARY KEY, embedding vector(8))",
          "GRANT SELECT, UPDATE ON docs TO {guest}"), {}, "docs"),
        (("CREATE EXTENSION vector", "REVOKE CREATE ON SCHEMA public FROM public"), {}, "public"),
        (("CREATE EXTENSION vector", "CREATE TABLE docs (id INT PRIMARY KEY DEFERRABLE, embedding vector(8))",
          "GRANT ALL ON docs TO {guest}"), {}, "DEFERRABLE"),
        (("CREATE EXTENSION vector", "GRANT CREATE ON SCHEMA public TO {guest}"), {"keep": ("v",), "column": "v"}, "v"),
    ],
)  # fmt: skip
def test_a_table_that_can_not_be_written_is_refused_before_the_first_row(
    statements: tuple[str, ...], options: dict[str, Any], named: str, database: Shop
) -> None:
    guest = f"{name_of(database)}_guest"
    database.do(f"CREATE ROLE {guest} LOGIN", *(statement.format(guest=guest) for statement in statements))
    destination = output(database, guest=guest, **options)
    with raises(BatchError, "output_invalid", naming=named):
        destination.check()
        destination.check_dimensions(8)
    destination.close()
    database.do(f"DROP OWNED BY {guest}", f"DROP ROLE {guest}")


def test_a_server_may_connect_during_the_first_write(database: Shop) -> None:
    database.do("CREATE EXTENSION vector")
    destination = output(database)
    errors: list[Exception] = []

    def check() -> None:
        try:
            destination.check_dimensions(8)
        except Exception as error:
            errors.append(error)

    other = threading.Thread(target=check)
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

    def before_types_are_read(_1: Any, _2: Any, statement: str, *_: Any) -> None:
        if "NOT atthasdef" in statement and not other.ident:
            other.start()
            wait_until(lambda: not other.is_alive() or database.rows(waiting))

    event.listen(Engine, "before_cursor_execute", before_types_are_read)
    try:
        destination.write_rows([line(1, "one")])
    finally:
        event.remove(Engine, "before_cursor_execute", before_types_are_read)
    other.join()
    assert errors == []
