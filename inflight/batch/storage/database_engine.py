"""Creates SQLAlchemy engines for databases of inputs and outputs."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from inflight.batch.errors import BatchError, package_missing
from inflight.batch.storage.secret_address import expand_variables, masked, scrubbed

if TYPE_CHECKING:
    from sqlalchemy import Engine

LOCK_TIMEOUT = 60.0
"""Seconds to wait for another program's lock on an SQLite file."""

_PSYCOPG: dict[str, int | None] = {
    "connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3,
    "tcp_user_timeout": 30_000, "prepare_threshold": None,
}  # fmt: skip
"""Settings of connections that an address does not set: a server that is gone is noticed within a minute, and nothing
is prepared, since a pooler such as PgBouncer may run each transaction in another session."""
_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}


def create_database_engine(address: str, code: str, pooled: bool) -> Engine:
    """Create an engine, without connecting. Unless `pooled`, each connection is new, and none stays open.

    Raises BatchError: with `code` if this is not a database URL, or names a variable that is not set; `package_missing`
    if the driver is missing.
    """
    try:
        from sqlalchemy import NullPool, create_engine, make_url
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SAWarning
    except ModuleNotFoundError as error:
        raise package_missing(masked(address), error, "sqlalchemy") from error
    # Of types that it does not know, which are read nevertheless. For all threads: catch_warnings is safe in one alone.
    warnings.filterwarnings("ignore", category=SAWarning)
    try:
        url = make_url(expand_variables(address, code))
        url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
        backend = url.get_backend_name()
        settings: dict[str, Any] = {"timeout": LOCK_TIMEOUT} if backend == "sqlite" else {}
        settings |= _PSYCOPG if url.drivername == "postgresql+psycopg" else {}
        connect_args = {name: value for name, value in settings.items() if name not in url.query}
        options: dict[str, Any] = {"connect_args": connect_args}
        options |= {"pool_pre_ping": backend != "sqlite"} if pooled else {"poolclass": NullPool}
        return create_engine(url, hide_parameters=True, **options)
    except (ArgumentError, NoSuchModuleError, ValueError) as error:  # ValueError: the port is not a number
        words = scrubbed(error, address) if isinstance(error, NoSuchModuleError) else "write NAME://USER@HOST/DATABASE"
        raise BatchError(f"{masked(address)} is not a database URL ({words})", code) from None
    except ModuleNotFoundError as error:
        raise BatchError(
            f"{masked(address)} needs the package {error.name}; install it (inflight[postgresql] includes psycopg)",
            "package_missing",
        ) from error


def is_sqlite(engine: Engine) -> bool:
    return engine.dialect.name == "sqlite"


def sqlstate(error: BaseException | None) -> str:
    """Return the SQLSTATE of a driver's error, or of SQLAlchemy's about it; empty for others."""
    return str(getattr(getattr(error, "orig", error), "sqlstate", None) or "")


def database_error_text(address: str, error: BaseException) -> str:
    """Return a database's error on one line, without secrets of the address and without values of rows."""
    diagnosis = getattr(error, "diag", None)  # psycopg's
    words = getattr(diagnosis, "message_primary", None) or str(error).partition("\nDETAIL:")[0].partition("\n[SQL:")[0]
    if sqlstate(error).startswith("22"):  # an invalid number, date, ...: the message quotes it
        first, quoted, rest = words.partition('"')
        words = f'{first}"..."{rest.rpartition(chr(34))[2]}' if quoted else words
    return scrubbed(words, address).rstrip(".")[:400]
