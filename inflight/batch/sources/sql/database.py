"""Connects to an input's database, and converts its errors to BatchError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inflight.batch.errors import BatchError
from inflight.batch.storage.database_engine import LOCK_TIMEOUT, create_database_engine, database_error_text, is_sqlite
from inflight.batch.storage.secret_address import masked

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

_HELD = ("SQLITE_BUSY", "SQLITE_LOCKED")


class SourceDatabase:
    """A database to read from. Raises BatchError: `input_not_found`, `input_invalid`, `package_missing`,
    `storage_denied`, `storage_unreachable`.
    """

    def __init__(self, address: str) -> None:
        self._address, self.shown = address, masked(address)
        self._engine = self._create_engine(address)
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

    @property
    def is_sqlite(self) -> bool:
        return is_sqlite(self._engine)

    def _create_engine(self, address: str) -> Engine:
        # A new connection for each read: sources are not closed, and a server need not wait for the next page.
        engine = create_database_engine(address, "input_invalid", pooled=False)
        if is_sqlite(engine):
            from sqlalchemy import event

            # SQLAlchemy would create an empty database if the file is missing.
            if not engine.url.database or not Path(engine.url.database).is_file():
                raise BatchError(f"there is no database {self.shown}; check the path", "input_not_found")
            event.listen(engine, "connect", _take_any_text)
        elif engine.dialect.driver == "psycopg":
            from sqlalchemy import event

            event.listen(engine, "connect", _take_any_time)
        return engine

    def _to_batch_error(self, error: Any) -> BatchError:
        words, state = (
            database_error_text(self._address, error.orig or error),
            str(getattr(error.orig, "sqlstate", None) or ""),
        )
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
