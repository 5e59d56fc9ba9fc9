"""Connects to an output's database, and converts its errors to BatchError."""

from __future__ import annotations

import errno
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from inflight.batch.errors import BatchError
from inflight.batch.failpoints import failpoint
from inflight.batch.storage import database_engine
from inflight.batch.storage.secret_address import masked

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.exc import DBAPIError

_RETRY_WAITS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds between attempts after a lost connection; the server may be about to return."""
_CANCEL_SECONDS = 5.0
_FULL = {"53100"}  # PostgreSQL's disk_full, https://www.postgresql.org/docs/current/errcodes-appendix.html

_PERMANENT_CLASSES = {"0A", "22", "23", "28", "3D", "3F", "42", "44"}
"""Permanent SQLSTATE classes: unsupported, invalid values, constraints, authentication, unknown database or schema,
missing privileges."""
_SQLITE_PERMANENT = {
    sqlite3.SQLITE_ERROR, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_NOTADB,
}  # fmt: skip
"""https://www.sqlite.org/rescode.html"""

_T = TypeVar("_T")


class OutputDatabase:
    """Runs transactions in an output's database.

    Raises BatchError `output_failed`, `disk_full`, `package_missing`, and `output_invalid` for permanent errors.
    """

    def __init__(self, address: str) -> None:
        self._address, self.shown = address, masked(address)
        self._engine = database_engine.create_database_engine(address, "output_invalid", pooled=True)
        self._is_sqlite = database_engine.is_sqlite(self._engine)
        if self._is_sqlite:
            from sqlalchemy import event

            # A transaction that reads first and then writes cannot wait for another writer, so it begins as a writer.
            event.listen(self._engine, "connect", _disable_implicit_transactions)
            event.listen(self._engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))

    def run(self, work: Callable[[Connection], _T], retry: bool = True) -> _T:
        """Run `work` in one transaction; if the connection is lost, try again unless `retry` is false."""
        from sqlalchemy.exc import DBAPIError, SQLAlchemyError

        for pause in (*(_RETRY_WAITS if retry else ()), None):
            try:
                with self._engine.begin() as connection, _discarded_if_interrupted(connection):
                    done = work(connection)
                    failpoint("table.commit")
                failpoint("table.committed")
                return done
            except DBAPIError as error:
                if pause is None or not self._is_lost_connection(error):
                    raise self._to_batch_error(error, error.orig) from error
                time.sleep(pause)
            except (SQLAlchemyError, OSError) as error:
                raise self._to_batch_error(error, error) from error
        raise AssertionError("the last try ends the loop")

    @property
    def dialect(self) -> str:
        """Return SQLAlchemy's name of the database system."""
        return self._engine.dialect.name

    @property
    def exists(self) -> bool:
        """Return whether the database exists, if it is a file; connecting would create it."""
        path = self._engine.url.database if self._is_sqlite else None
        return not path or path.startswith("file:") or Path(path).exists()

    def close(self) -> None:
        self._engine.dispose()

    def _is_lost_connection(self, error: DBAPIError) -> bool:
        """Return whether another attempt may succeed. For a locked SQLite file the engine has already waited."""
        from sqlalchemy.exc import OperationalError

        if self._is_sqlite:
            return False
        state = getattr(error.orig, "sqlstate", None)
        return error.connection_invalidated or (
            isinstance(error, OperationalError) and (state is None or state[:2] in ("08", "40", "57"))
        )

    def _to_batch_error(self, error: Exception, cause: BaseException | None) -> BatchError:
        reason = database_engine.database_error_text(self._address, cause or error)
        if _is_full(cause):
            return BatchError(f"{self.shown} has no space left ({reason}); free disk space", "disk_full")
        if getattr(cause, "sqlite_errorcode", None) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            reason = f"another program has locked it for {database_engine.LOCK_TIMEOUT:.0f} seconds: {reason}"
        return BatchError(
            f"{self.shown} can't be written ({reason}); check it",
            "output_invalid" if _is_permanent(cause) else "output_failed",
        )


@contextmanager
def _discarded_if_interrupted(connection: Connection) -> Iterator[None]:
    """Cancel the statement and close the connection if a signal interrupts it: it can't be rolled back any more."""
    driver = connection.connection.dbapi_connection
    try:
        yield
    except Exception:
        raise
    except BaseException:
        with suppress(Exception):
            if (cancel := getattr(driver, "cancel_safe", None)) is not None:  # psycopg's
                cancel(timeout=_CANCEL_SECONDS)
        connection.invalidate()
        raise


def _is_permanent(cause: BaseException | None) -> bool:
    """Return whether the error is permanent: it is about the answers, the table, or privileges."""
    lite = getattr(cause, "sqlite_errorcode", None)
    state = database_engine.sqlstate(cause)
    return (lite is not None and lite & 0xFF in _SQLITE_PERMANENT) or state[:2] in _PERMANENT_CLASSES


def _is_full(cause: BaseException | None) -> bool:
    return (
        getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        or getattr(cause, "sqlstate", None) in _FULL
        or getattr(cause, "errno", None) == errno.ENOSPC
    )


def _disable_implicit_transactions(connection: Any, _: Any) -> None:
    """Stop Python's sqlite3 from starting transactions implicitly."""
    connection.isolation_level = None
