"""Answers in tables: of SQLite, and of a real PostgreSQL."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import RowStatus
from inflight.batch.outputs.sql import TableOutput
from tests.batch.outputs.answers import files, job, openai, plain
from tests.batch.outputs.shop import Shop
from tests.fixtures.errors import raises


def test_answers_go_into_the_rows_of_their_ids_and_nothing_else_changes(shop: Shop, tmp_path: Path) -> None:
    shop.products(3)
    destination = shop.descriptions(columns={"output_tokens": "tokens"})
    destination.check()
    # An id of a file is a text, one of a table a number: both mean the row.
    destination.write_rows([plain(1), plain("2", "Zwei")])
    destination.write_rows([plain("2", "Zwei")])
    assert shop.rows("SELECT * FROM products ORDER BY sku") == [
        (1, "product 1", 1, "Answer 1, “quoted”", 3),
        (2, "product 2", 2, "Zwei", 3),
        (3, "product 3", 3, None, None),
    ]
    assert list(destination.find_differences(files(tmp_path, [plain(1), plain(2, "Zwei"), plain(3)]))) == ["3"]


def test_a_tables_own_key_finds_its_rows(lite: Shop) -> None:
    lite.products(2)
    destination = lite.output(table="products", column="description")
    destination.check()
    destination.write_rows([plain(2, "Zwei")])
    assert lite.rows("SELECT description FROM products ORDER BY sku") == [(None,), ("Zwei",)]
    lite.do("CREATE TABLE loose (sku INTEGER, description TEXT)")
    with raises(BatchError, "output_invalid", naming=("loose", "--id")):
        lite.output(table="loose", column="description").check()


def test_rows_that_have_gone_are_counted_and_told(shop: Shop, tmp_path: Path) -> None:
    shop.products(2)
    destination = shop.descriptions()
    answers = [plain(n) for n in range(1, 9)] + [plain("no number")]
    destination.write_rows(answers)
    written = destination.finalize(files(tmp_path, answers, dead=[b"{}"]))
    assert written == [f"{shop.address} (table products)", str(tmp_path / "dead.jsonl")]
    (note,) = destination.notes()
    assert note.startswith("answers without a row in the table products: 7 (ids 3, 4, 5, 6, 7, ...)")


def test_a_table_is_made_where_there_is_none(shop: Shop) -> None:
    destination = shop.output(keep=("price", "tags", "fresh"), table="answers")
    destination.check()
    destination.write_rows(
        [plain(7, price=1, tags=["a", "b"], fresh=True), plain(8, "x", price=2.5, tags=None, fresh=False)]
    )
    destination.write_rows([plain(8, "y", price=2.5, tags=[], fresh=False)])
    assert shop.rows("SELECT id, text, finish_reason, input_tokens, output_tokens, tags FROM answers ORDER BY id") == [
        (7, "Answer 7, “quoted”", "stop", 7, 3, '["a","b"]'),
        (8, "y", "stop", 7, 3, "[]"),
    ]
    assert [
        (float(price), bool(fresh)) for price, fresh in shop.rows("SELECT price, fresh FROM answers ORDER BY id")
    ] == [
        (1.0, True),
        (2.5, False),
    ]


def test_an_existing_table_keeps_what_is_not_the_answers(shop: Shop, tmp_path: Path) -> None:
    shop.do(
        "CREATE TABLE answers (id CHAR(4), text TEXT, note TEXT)", "INSERT INTO answers VALUES ('a', 'old', 'mine')"
    )
    destination = shop.output(table="answers")
    destination.check()
    for _ in range(2):
        destination.write_rows([openai("a", "new"), openai("b", "first")])
    rows = shop.rows("SELECT trim(id), text, note FROM answers ORDER BY id")
    assert rows == [("a", "new", "mine"), ("b", "first", None)]
    assert list(destination.find_differences(files(tmp_path, [openai("a", "new"), openai("b", "first")]))) == []


def test_rows_that_were_lost_are_there_again_at_the_end(shop: Shop, tmp_path: Path) -> None:
    destination = shop.output(table="answers")
    answers = [plain(n) for n in range(1200)]
    destination.write_rows(answers)
    shop.do("DELETE FROM answers WHERE id IN (3, 777)")
    destination.finalize(files(tmp_path, answers))
    assert shop.rows("SELECT count(*) FROM answers") == [(1200,)]
    assert list(destination.find_differences(files(tmp_path, answers))) == []


@pytest.mark.parametrize(
    ("output", "named"),
    [
        ({"table": "prodcts", "key": "sku", "column": "description"}, "prodcts"),
        ({"table": "products", "key": "nr", "column": "description"}, ("nr", "sku, name, price")),
        (
            {"table": "products", "key": "sku", "column": "description", "columns": {"output_tokens": "x"}},
            "'x'",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_told_before_anything_is_asked(lite: Shop, output: Any, named: str) -> None:
    lite.products(1)
    with raises(BatchError, "output_invalid", naming=named):
        lite.output(**output).check()


def test_ids_that_are_uuids_and_columns_of_types_that_nobody_knows(database: Shop) -> None:
    database.do("CREATE TABLE odd (id UUID PRIMARY KEY, description VARCHAR(9), other TXID_SNAPSHOT)")
    database.do("INSERT INTO odd VALUES ('0f7f6d6c-66a3-4c5c-8d5a-0a3f0f6b9c11')")
    destination = database.output(table="odd", column="description")
    destination.check()
    destination.write_rows([plain("0F7F6D6C-66A3-4C5C-8D5A-0A3F0F6B9C11", "Fits"), plain("no uuid", "Fits not")])
    assert database.rows("SELECT description FROM odd") == [("Fits",)]
    assert "1 (ids no uuid)" in destination.notes()[0]
    with raises(BatchError, "output_invalid", naming="varying(9)"):
        destination.write_rows([plain("0f7f6d6c-66a3-4c5c-8d5a-0a3f0f6b9c11", "Too long a text")])


def test_a_mistyped_file_is_not_made(tmp_path: Path) -> None:
    described = job(f"sqlite:///{tmp_path}/shpo.db", table="products", key="sku", column="description")
    with raises(BatchError, "output_invalid", naming="shpo.db"):
        TableOutput(described).check()
    assert list(tmp_path.iterdir()) == []


def test_the_file_that_is_read_by_pages_can_be_written(lite: Shop, tmp_path: Path) -> None:
    """As in a job that describes the products of a table in that table."""
    lite.products(6)
    destination = lite.descriptions()
    reader = sqlite3.connect(tmp_path / "shop.db")
    after, ids = 0, []
    while page := reader.execute("SELECT sku FROM products WHERE sku > ? ORDER BY sku LIMIT 2", (after,)).fetchall():
        ids += [row[0] for row in page]
        after = page[-1][0]
        destination.write_rows([plain(row[0]) for row in page])
    assert ids == [1, 2, 3, 4, 5, 6]
    assert lite.rows("SELECT count(description) FROM products") == [(6,)]
    reader.close()


def test_nothing_answered_is_nothing_written(lite: Shop, tmp_path: Path) -> None:
    destination = lite.output(table="answers")
    destination.write_rows([])
    assert destination.finalize({kind: tmp_path / f"{kind}.jsonl" for kind in RowStatus}) == [
        f"{lite.address} (table answers)"
    ]


@pytest.mark.parametrize(
    ("keep", "columns", "named"),
    [
        (("name",), {}, None),
        (("title", "id"), {"title": "name"}, None),
        (("title",), {}, "title"),
        (("name",), {"output_tokens": "name"}, "name"),
    ],
)
def test_each_kept_value_needs_a_column_of_its_own(
    keep: tuple[str, ...], columns: dict[str, str], named: str | None, lite: Shop
) -> None:
    lite.do("CREATE TABLE answers (id INTEGER PRIMARY KEY, text TEXT, name TEXT)")
    destination = lite.output(keep=keep, table="answers", columns=columns)
    if named is None:
        destination.check()
    else:
        with raises(BatchError, "output_invalid", naming=named):
            destination.check()
