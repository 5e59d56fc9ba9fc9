"""SQLite databases that several processes share."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def open_database(path: Path, schema: str, *, timeout: float, durable: bool = True) -> sqlite3.Connection:
    """Open or create a database that only its user can read. Raises sqlite3.Error, OSError.

    `timeout`: seconds to wait for other processes. Not `durable`: the last changes may be lost with the machine.
    """
    with locked(path):  # SQLite's change to write-ahead logging does not wait for other processes that do the same
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
        connection.executescript(schema)
    return connection


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from opening a database. Raises OSError."""
    lock = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Make all changes, or none if an exception is raised."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite ends it by itself after some errors
            connection.execute("ROLLBACK")
        raise
