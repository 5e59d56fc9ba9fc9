"""Tables and queries as rows, in SQLite and PostgreSQL."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from inflight.batch.errors import BatchError
from inflight.batch.job.spec import InputSpec, Job, OutputSpec
from inflight.batch.row_formats.template import wanted_columns
from inflight.batch.sources.factory import open_source
from inflight.batch.storage import database_engine
from tests.fixtures.errors import raises
from tests.fixtures.postgresql import PostgreSql

Make = Callable[..., str]
"""Makes a database of these statements; its address."""


@pytest.fixture(params=["sqlite", "postgresql"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def made(*statements: str) -> str:
        if request.param == "sqlite":
            address = f"sqlite:///{tmp_path}/shop.db"
        else:
            server: PostgreSql = request.getfixturevalue("postgresql")
            address = server.database()
        _do(address, *statements)
        return address

    return made


def _do(address: str, *statements: str) -> None:
    engine = create_engine(address.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def _numbers(count: int) -> str:
    ones = "SELECT 0 AS d" + "".join(f" UNION ALL SELECT {d}" for d in range(1, 10))
    n = "a.d + 10 * b.d + 100 * c.d + 1000 * e.d"
    return f"SELECT {n} AS n FROM ({ones}) a, ({ones}) b, ({ones}) c, ({ones}) e WHERE {n} < {count}"


def _products(count: int) -> tuple[str, str]:
    return (
        "CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, description TEXT)",
        f"INSERT INTO products SELECT n, 'tea ' || n, NULL FROM ({_numbers(count)}) t",
    )


def test_a_table_is_read_in_the_order_of_its_key_from_any_row_on(make: Make) -> None:
    source = open_source(InputSpec(address=make(*_products(1234)), table="products"))
    records = list(source.read())
    assert (source.total, source.key_column, source.columns) == (1234, "id", ["id", "name", "description"])
    assert [record.line for record in records] == list(range(1, 1235))
    assert records[7].values is not None
    assert records[7].values["id"] == 7
    for number in (0, 498, 499, 500, 1232, 1233):
        position = json.loads(json.dumps(records[number].position))
        assert list(source.read(position, number + 1)) == records[number + 1 :]


def test_answers_can_be_written_to_the_table_that_is_read_and_what_grows_has_an_end(make: Make) -> None:
    address = make(*_products(1200))
    seen = []
    for record in open_source(InputSpec(address=address, table="products")).read():
        assert record.values is not None
        seen.append(record.values["id"])
        if len(seen) % 400 == 1:
            _do(
                address,
                f"UPDATE products SET description = 'good' WHERE id <= {seen[-1]}",
                f"INSERT INTO products VALUES ({5000 + len(seen)}, 'new', NULL)",
            )
    assert seen == list(range(1200))


def test_a_table_that_has_grown_is_the_one_that_the_job_began_with(make: Make) -> None:
    address = make(*_products(10))
    begun = open_source(InputSpec(address=address, table="products"))
    records = list(begun.read())
    _do(address, "INSERT INTO products VALUES (100, 'new', NULL)")
    grown = open_source(InputSpec(address=address, table="products"), begun.fingerprint)
    assert grown.fingerprint == begun.fingerprint
    assert list(grown.read()) == records
    assert list(grown.read(records[4].position, 5)) == records[5:]
    assert open_source(InputSpec(address=address, table="products")).fingerprint != begun.fingerprint


def test_a_row_that_is_gone_when_a_job_is_resumed_is_told(make: Make) -> None:
    address = make(*_products(10))
    begun = open_source(InputSpec(address=address, table="products"))
    records = list(begun.read())
    _do(address, "DELETE FROM products WHERE id = 7")
    with raises(BatchError, "input_changed", naming="5"):
        list(open_source(InputSpec(address=address, table="products"), begun.fingerprint).read(records[4].position, 5))


def test_rows_with_keys_in_between_are_in_the_way_and_a_query_leaves_them_out(make: Make) -> None:
    address = make(
        "CREATE TABLE words (key VARCHAR(9) PRIMARY KEY, created INTEGER)",
        f"INSERT INTO words SELECT 'k' || (1000 + n), 1 FROM ({_numbers(10)}) t",
    )
    table = InputSpec(address=address, table="words")
    query = InputSpec(address=address, query="SELECT key FROM words WHERE created < 2", id="key")
    begun = [(spec, open_source(spec).fingerprint, list(open_source(spec).read())) for spec in (table, query)]
    _do(address, "INSERT INTO words VALUES ('k10075', 2)")
    for spec, fingerprint, records in begun:
        again = open_source(spec, fingerprint)
        assert again.fingerprint == fingerprint
        if spec.query is not None:
            assert list(again.read(records[4].position, 5)) == records[5:]
            continue
        with raises(BatchError, "input_changed", naming="--query"):
            list(again.read(records[4].position, 5))


def test_keys_of_text_and_of_several_columns_tell_rows_apart(make: Make) -> None:
    address = make(
        "CREATE TABLE words (shop VARCHAR(9), sku VARCHAR(9), PRIMARY KEY (shop, sku))",
        f"INSERT INTO words SELECT 'é' || n % 3, 'k' || n FROM ({_numbers(1100)}) t",
    )
    source = open_source(InputSpec(address=address, table="words"))
    records = list(source.read())
    assert source.key_column is None
    assert len({tuple((record.values or {}).values()) for record in records}) == 1100
    position = json.loads(json.dumps(records[600].position))
    assert list(source.read(position, 601)) == records[601:]


def test_a_query_is_read_by_its_column_of_ids(make: Make) -> None:
    address = make(*_products(900))
    query = "SELECT name || '!' AS sku, id * 2 AS twice FROM products WHERE id >= 100 AND name <> ':x';"
    source = open_source(InputSpec(address=address, query=query, id="sku"))
    records = list(source.read())
    assert len(records) == source.total == 800
    assert source.columns == ["sku", "twice"]
    assert list(source.read(records[499].position, 500)) == records[500:]


def test_a_query_for_what_is_not_done_yet_goes_on_where_the_job_was(make: Make) -> None:
    address = make(*_products(1200))
    spec = InputSpec(address=address, query="SELECT id, name FROM products WHERE description IS NULL", id="id")
    begun = open_source(spec)
    records = list(begun.read())
    _do(address, "UPDATE products SET description = 'good' WHERE id < 700")
    resumed = open_source(spec, begun.fingerprint)
    assert (resumed.fingerprint, resumed.total) == (begun.fingerprint, 1200)
    assert list(resumed.read(records[699].position, 700)) == records[700:]


def test_columns_that_no_row_needs_are_not_read(make: Make) -> None:
    spec = InputSpec(address=make(*_products(1)), table="products", template="{{ name }}")
    (record,) = open_source(
        spec, columns=wanted_columns(Job(input=spec, output=OutputSpec(address="answers.jsonl")))
    ).read()
    assert record.values == {"id": 0, "name": "tea 0"}


def test_an_empty_table_has_no_rows(make: Make) -> None:
    source = open_source(InputSpec(address=make(*_products(0)), table="products"))
    assert (source.total, list(source.read())) == (0, [])


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({}, "input_not_found", ("--table", "products")),
        ({"table": "product"}, "input_not_found", ("'product'", "products")),
        ({"table": "products", "id": "sku"}, "input_not_found", ("sku", "id, name, description")),
        ({"query": "SELECT id FROM products"}, "input_invalid", "--id"),
        ({"query": "SELECT id FROM nowhere", "id": "id"}, "input_invalid", "nowhere"),
        ({"query": "SELEKT 1", "id": "id"}, "input_invalid", "syntax error"),
        (
            {"query": "SELECT 1 AS one FROM products", "id": "one"},
            "input_invalid",
            "9 of the 10 rows",
        ),
        ({"query": "SELECT 1 AS id", "table": "products", "id": "id"}, "input_invalid", ()),
    ],
)
def test_what_is_not_there_is_told(make: Make, options: dict[str, Any], code: str, words: str) -> None:
    with raises(BatchError, code, naming=words):
        open_source(InputSpec(address=make(*_products(10)), **options))


def test_a_table_of_sqlite_without_a_key_is_read_by_rowid(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    _do(f"sqlite:///{path}", "CREATE TABLE t (name)", "INSERT INTO t VALUES ('b'), ('a'), ('a')")
    source = open_source(InputSpec(address=f"sqlite:///{path}", table="t", prompt="name"))
    records = list(source.read())
    assert [record.values for record in records] == [{"name": "b"}, {"name": "a"}, {"name": "a"}]
    assert source.key_column is None
    with raises(BatchError, "input_invalid", naming=("1", "3")):
        open_source(InputSpec(address=f"sqlite:///{path}", table="t", id="name"))


def test_a_text_that_is_no_text_leaves_the_other_rows_alone(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, prompt TEXT)")
        connection.execute("INSERT INTO t VALUES (1, 'good'), (2, CAST(x'ff' AS TEXT)), (3, 'good')")
    connection.close()
    values = [record.values for record in open_source(InputSpec(address=f"sqlite:///{path}", table="t")).read()]
    assert values == [{"id": 1, "prompt": "good"}, {"id": 2, "prompt": b"\xff"}, {"id": 3, "prompt": "good"}]


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        ("timestamptz", "infinity", "infinity"),
        ("timestamp", "0044-03-15 12:00:00 BC", "0044-03-15 12:00:00 BC"),
        ("date", "-infinity", "-infinity"),
        ("time", "24:00:00", "24:00:00"),
        ("interval", "9999999 years", "9999999 years"),
        ("date[]", "{infinity,2026-05-04}", ["infinity", date(2026, 5, 4)]),
    ],
)
def test_times_that_python_lacks_are_texts_and_leave_the_other_rows_alone(
    postgresql: PostgreSql, kind: str, value: str, read: Any
) -> None:
    address = postgresql.database()
    _do(address, f"CREATE TABLE t (id int PRIMARY KEY, x {kind})", f"INSERT INTO t VALUES (1, '{value}'), (2, NULL)")
    values = [record.values for record in open_source(InputSpec(address=address, table="t")).read()]
    assert values == [{"id": 1, "x": read}, {"id": 2, "x": None}]


@pytest.mark.parametrize(
    ("address", "code", "words"),
    [
        ("sqlite:///{path}/text.db", "input_invalid", "text.db"),
        ("postgresql://app:hidden@127.0.0.1:9/shop", "storage_unreachable", "app:***@127.0.0.1"),
        ("postgresql://app:${{NOT_SET_ANYWHERE}}@127.0.0.1:9/shop", "input_invalid", "NOT_SET_ANYWHERE"),
    ],
)
def test_a_database_that_is_not_there_is_told(tmp_path: Path, address: str, code: str, words: str) -> None:
    (tmp_path / "text.db").write_text("no database, but a text " * 100)
    with raises(BatchError, code, naming=words) as refused:
        open_source(InputSpec(address=address.format(path=tmp_path), table="t"))
    assert "hidden" not in str(refused.value)


def test_a_database_that_another_program_holds_is_to_be_asked_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_engine, "LOCK_TIMEOUT", 0.05)
    address = f"sqlite:///{tmp_path}/shop.db"
    _do(address, *_products(3))
    source = open_source(InputSpec(address=address, table="products"))
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for read in (lambda: list(source.read()), lambda: open_source(InputSpec(address=address, table="products"))):
            with raises(BatchError, "storage_unreachable", naming="locked"):
                read()
    assert len(list(source.read())) == 3
