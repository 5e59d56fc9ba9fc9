"""A connection to the database of an output, and what it says against writing, as a sentence with a code of ours."""

from __future__ import annotations

import errno
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from inflight.batch import database_engine
from inflight.batch.errors import BatchError
from inflight.batch.failpoints import reach
from inflight.batch.secret_address import masked

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.exc import DBAPIError

_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds between tries where a server was lost: it may be about to come back."""
_FULL = {"53100"}  # PostgreSQL's disk_full, https://www.postgresql.org/docs/current/errcodes-appendix.html

_STAYS = {"0A", "22", "23", "28", "3D", "3F", "42", "44"}
"""Classes of SQLSTATE: not supported, wrong values, constraints, who it is, no such database or schema, no right."""
_LITE_STAYS = {
    sqlite3.SQLITE_ERROR, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_NOTADB,
}  # fmt: skip
"""https://www.sqlite.org/rescode.html"""

_T = TypeVar("_T")


class Database:
    """Runs work in transactions.

    Raises BatchError `output_failed`, `disk_full`, `package_missing`, and `output_invalid` for what will not pass.
    """

    def __init__(self, address: str) -> None:
        self._address, self.shown = address, masked(address)
        self._engine = self._made(address)

    def run(self, work: Callable[[Connection], _T], patient: bool = True) -> _T:
        """Do it in one transaction, and again where the connection was lost on the way, unless one is not `patient`."""
        from sqlalchemy.exc import DBAPIError, SQLAlchemyError

        for pause in (*(_PAUSES if patient else ()), None):
            try:
                with self._engine.begin() as connection:
                    done = work(connection)
                    reach("table.commit")
                reach("table.committed")
                return done
            except DBAPIError as error:
                if pause is None or not self._lost(error):
                    raise self._failed(error, error.orig) from error
                time.sleep(pause)
            except (SQLAlchemyError, OSError) as error:
                raise self._failed(error, error) from error
        raise AssertionError("the last try ends the loop")

    @property
    def is_there(self) -> bool:
        """Whether there is a file, where it is one: to connect would make it."""
        path = self._engine.url.database if self._lite else None
        return not path or path.startswith("file:") or Path(path).exists()

    def close(self) -> None:
        self._engine.dispose()

    def _made(self, address: str) -> Engine:
        engine = database_engine.database_engine(address, "output_invalid", pooled=True)
        self._lite = database_engine.is_sqlite(engine)
        if self._lite:
            from sqlalchemy import event

            # A transaction that reads first and writes then can't wait for another writer: it begins as a writer.
            event.listen(engine, "connect", _by_hand)
            event.listen(engine, "begin", _immediate)
        return engine

    def _lost(self, error: DBAPIError) -> bool:
        """Whether it may go better in a moment. A locked SQLite file has been waited for already."""
        from sqlalchemy.exc import OperationalError

        if self._lite:
            return False
        state = getattr(error.orig, "sqlstate", None)
        return error.connection_invalidated or (
            isinstance(error, OperationalError) and (state is None or state[:2] in ("08", "40", "57"))
        )

    def _failed(self, error: Exception, cause: BaseException | None) -> BatchError:
        said = database_engine.words_of(self._address, cause or error)
        if _is_full(cause):
            return BatchError(f"{self.shown} has no space left ({said}); free space there", "disk_full")
        if getattr(cause, "sqlite_errorcode", None) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            said = f"another program has held it for {database_engine.LOCKED_SECONDS:.0f} seconds: {said}"
        return BatchError(
            f"{self.shown} can't be written ({said}); check it",
            "output_invalid" if _stays(cause) else "output_failed",
        )


def _stays(cause: BaseException | None) -> bool:
    """Whether the database would say the same again: of the answers, the table, or who may write there."""
    lite = getattr(cause, "sqlite_errorcode", None)
    state = str(getattr(cause, "sqlstate", None) or "")
    return (lite is not None and lite & 0xFF in _LITE_STAYS) or state[:2] in _STAYS


def _is_full(cause: BaseException | None) -> bool:
    return (
        getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        or getattr(cause, "sqlstate", None) in _FULL
        or getattr(cause, "errno", None) == errno.ENOSPC
    )


def _by_hand(connection: Any, _: Any) -> None:
    """Python's sqlite3 begins no transactions of its own any more."""
    connection.isolation_level = None


def _immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
