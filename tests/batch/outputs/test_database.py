"""What databases say against writing: locks, lost servers, full disks, and secrets that stay so."""

from __future__ import annotations

import errno
import re
import sqlite3
import threading
import time
from pathlib import Path

import psycopg
import pytest

from inflight.batch import failpoints
from inflight.batch.errors import BatchError
from inflight.batch.outputs.sql import TableOutput
from inflight.batch.storage import database_engine
from tests.batch.outputs.answers import job, plain
from tests.batch.outputs.shop import Shop
from tests.fixtures.errors import raises
from tests.fixtures.postgresql import PostgreSql
from tests.fixtures.waiting import wait_until


def test_a_locked_file_is_waited_for(lite: Shop, tmp_path: Path) -> None:
    lite.products(1)
    destination = lite.descriptions()
    other = sqlite3.connect(tmp_path / "shop.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    timer = threading.Timer(0.7, lambda: other.execute("COMMIT"))
    began = time.monotonic()
    timer.start()
    destination.write_rows([plain(1)])
    assert time.monotonic() - began > 0.5
    assert lite.rows("SELECT description FROM products") == [("Answer 1, “quoted”",)]
    timer.join()
    other.close()


def test_a_file_that_stays_locked_fails_with_a_sentence(
    lite: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lite.products(1)
    monkeypatch.setattr(database_engine, "LOCK_TIMEOUT", 0.3)
    other = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    destination = lite.descriptions()
    with raises(BatchError, "output_failed", naming="locked"):
        destination.write_rows([plain(1)])
    other.execute("COMMIT")
    destination.write_rows([plain(1)])
    other.close()


def test_what_a_database_will_never_take_is_told_apart_from_what_may_pass(shop: Shop) -> None:
    shop.do("CREATE TABLE short (id INTEGER PRIMARY KEY, text TEXT CHECK (length(text) < 5), finish_reason TEXT)")
    destination = shop.output(table="short")
    destination.check()
    destination.write_rows([plain(1, "fits")])
    with raises(BatchError, "output_invalid", naming="constraint"):
        destination.write_rows([plain(2, "does not fit")])
    shop.do("DROP TABLE short")
    with raises(BatchError, "output_invalid", naming="short"):
        destination.write_rows([plain(3, "gone")])


@pytest.mark.parametrize(
    "column",
    ["text TEXT, CHECK (input_tokens < 0)", "text INTEGER", "text DATE", "text VARCHAR(5)", "text UUID"],
)
def test_answers_stay_out_of_what_a_database_says(column: str, database: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    database.do(f"CREATE TABLE answers (id INTEGER PRIMARY KEY, input_tokens INTEGER, {column})")
    destination = database.output(table="answers")
    with raises(BatchError, "output_invalid") as caught:
        destination.write_rows([plain(1, 'The diagnosis is "CONFIDENTIAL" XYZ')])
    assert re.search("diagnosis|CONFIDENTIAL|XYZ", str(caught.value)) is None


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "shop.db").write_bytes(b"no database at all, and long enough for one" * 100)
    with raises(BatchError, "output_invalid", naming="shop.db"):
        TableOutput(job(f"sqlite:///{tmp_path}/shop.db", table="answers")).check()


def test_a_full_disk_leaves_nothing_half_written(lite: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    lite.products(2)
    destination = lite.descriptions()
    monkeypatch.setitem(failpoints._ARMED, "table.commit", (1, "full"))
    with raises(BatchError, "disk_full"):
        destination.write_rows([plain(1), plain(2)])
    assert lite.rows("SELECT count(description) FROM products") == [(0,)]
    monkeypatch.delitem(failpoints._ARMED, "table.commit")
    destination.write_rows([plain(1), plain(2)])
    assert lite.rows("SELECT count(description) FROM products") == [(2,)]


def test_a_server_that_was_started_again_loses_nothing(postgresql: PostgreSql, tmp_path: Path) -> None:
    shop = Shop(postgresql.database())
    destination = TableOutput(job(shop.address, table="answers"))
    destination.write_rows([plain(1)])
    shop.close()
    postgresql.stop()
    starter = threading.Timer(0.5, postgresql.start)
    starter.start()
    destination.write_rows([plain(2)])
    starter.join()
    assert shop.rows("SELECT id FROM answers ORDER BY id") == [(1,), (2,)]
    shop.close()
    destination.close()


def test_rows_are_sent_only_once_no_lock_holds_them_up(postgresql: PostgreSql) -> None:
    """The server reads no rows while it waits, and a connection whose data it does not read is given up."""
    shop = Shop(postgresql.database())
    shop.products(2)
    destination = shop.descriptions()
    waiting = "SELECT query FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with psycopg.connect(shop.address) as other:
        other.execute("LOCK TABLE products IN SHARE MODE")
        writer = threading.Thread(target=destination.write_rows, args=([plain(1), plain(2)],))
        writer.start()
        ((query,),) = wait_until(lambda: shop.rows(waiting))
    writer.join()
    assert query.endswith("WHERE false")
    assert shop.rows("SELECT count(description) FROM products") == [(2,)]
    shop.close()


def test_a_password_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "sEcr3t@/")
    for address in ("postgresql://me:sEcr3t@127.0.0.1:1/shop", "postgresql://me:${SHOP_PASSWORD}@127.0.0.1:1/shop"):
        with raises(BatchError, "output_failed", naming="127.0.0.1:1/shop") as caught:
            TableOutput(job(address, table="answers")).check()
        assert "sEcr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("nodialect://x/y", "output_invalid"),
        ("oracle://u:p@h/db", "package_missing"),
        ("postgresql://me:sEcr3t@x:sEcr3t@db/shop", "output_invalid"),
    ],
)
def test_an_address_without_its_driver(address: str, code: str) -> None:
    with raises(BatchError, code) as caught:
        TableOutput(job(address, table="answers"))
    assert "sEcr3t" not in str(caught.value)


@pytest.mark.parametrize("retried", [True, False])
def test_a_table_whose_creation_was_rolled_back_is_created_again(
    retried: bool, database: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the connection was lost, so that the transaction is tried again, or the caller does that."""
    commits: list[str] = []

    def before_commit(name: str) -> None:
        if name != "table.commit":
            return
        commits.append(name)
        if len(commits) > 1:
            return
        if not retried:
            raise OSError(errno.ENOSPC, "no space")
        database.do(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )

    monkeypatch.setattr("inflight.batch.outputs.database.failpoint", before_commit)
    destination = database.output(table="answers")
    if not retried:
        with raises(BatchError, "disk_full"):
            destination.write_rows([plain(1)])
    destination.write_rows([plain(1)])
    assert len(commits) == 2
    assert database.rows("SELECT id FROM answers") == [(1,)]
    with raises(BatchError, "output_invalid", naming="007"):
        destination.write_rows([plain("007")])


def test_two_jobs_that_create_a_table_at_once_write_to_one(database: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (database.output(table="answers") for _ in range(2))
    errors: list[Exception] = []

    def write() -> None:
        try:
            second.write_rows([plain(2)])
        except Exception as error:
            errors.append(error)

    other = threading.Thread(target=write)

    def before_commit(name: str) -> None:
        if name == "table.commit" and not other.ident:
            other.start()
            waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            wait_until(lambda: database.rows(waiting))

    monkeypatch.setattr("inflight.batch.outputs.database.failpoint", before_commit)
    first.write_rows([plain(1)])
    other.join()
    assert errors == []
    assert database.rows("SELECT id FROM answers ORDER BY id") == [(1,), (2,)]
