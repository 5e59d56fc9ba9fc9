"""The database of files and batches, in SQLite; their contents are files beside it, readable only by their owner."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from inflight_client import InflightError

from inflight.common.atomic_files import DISK_FULL_ERRORS, make_directory, sync
from inflight.common.sqlite import open_database, transaction

_BUSY_SECONDS = 30.0
_LEFTOVER_SECONDS = 60.0
"""Age from which a content without a record is one of a process that died."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant BLOB NOT NULL, purpose TEXT NOT NULL,
    filename TEXT NOT NULL, bytes INTEGER NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL,
    complete INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS files_of_tenant ON files (tenant, number);
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant BLOB NOT NULL, models TEXT NOT NULL,
    output_seconds INTEGER NOT NULL, status TEXT NOT NULL, ending TEXT NOT NULL, batch TEXT NOT NULL,
    changed_at REAL NOT NULL, open INTEGER NOT NULL, key TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS batches_of_tenant ON batches (tenant, number);
CREATE INDEX IF NOT EXISTS open_batches ON batches (number) WHERE open;
"""


class Database:
    """Safe for several threads and processes. A change is on the disk when its transaction has ended."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        with map_disk_errors("the database of files and batches"):
            private_directory(self.root)
            self._connection = open_database(self.root / "batches.sqlite", _SCHEMA, timeout=_BUSY_SECONDS)
            columns = {name for _, name, *_ in self._connection.execute("PRAGMA table_info(batches)")}
            if "key" not in columns:  # of an earlier version
                with suppress(sqlite3.OperationalError):  # another process was first
                    self._connection.execute("ALTER TABLE batches ADD COLUMN key TEXT NOT NULL DEFAULT ''")
        self._connection.row_factory = sqlite3.Row
        self._lock = threading.RLock()

    def close(self) -> None:
        self._connection.close()

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Return the rows of a query. Raises InflightError (see `map_disk_errors`)."""
        with map_disk_errors("the database of files and batches"), self._lock:
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def change(self, what: str) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction. Raises InflightError; `what` names what is being written."""
        with map_disk_errors(what), self._lock, transaction(self._connection):
            yield self._connection

    def page(
        self, table: str, where: str, values: Sequence[Any], after: object, limit: object, highest: int, order: str
    ) -> tuple[list[sqlite3.Row], bool]:
        """Return the rows of a page, in order of creation or `desc`, and whether there are more.

        Raises InflightError `invalid_parameter`.
        """
        if type(limit) is not int or not 1 <= limit <= highest:
            raise InflightError(f"limit is {shown_id(limit)}; it must be 1 to {highest}", "invalid_parameter")
        if order not in ("asc", "desc"):
            raise InflightError(f"order is {shown_id(order)}; it must be 'asc' or 'desc'", "invalid_parameter")
        query = f"FROM {table} WHERE {where}"
        if after is not None:
            valid = isinstance(after, str) and after.isascii()
            place = self.read(f"SELECT number {query} AND id = ?", (*values, after)) if valid else []
            if not place:
                raise InflightError(
                    f"after is {shown_id(after)}, which is not in the list; pass the last id of a page",
                    "invalid_parameter",
                )
            query += f" AND number {'<' if order == 'desc' else '>'} ?"
            values = (*values, place[0]["number"])
        rows = self.read(f"SELECT * {query} ORDER BY number {order} LIMIT ?", (*values, limit + 1))
        return rows[:limit], len(rows) > limit

    def remove_leftovers(self, table: str, folder: Path) -> None:
        """Remove what has no record, since its process died while it was created or removed."""
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS and not self.read(
                    f"SELECT 1 FROM {table} WHERE id = ?", (path.name,)
                ):
                    remove(path)


@contextmanager
def map_disk_errors(what: str) -> Iterator[None]:
    """Raises InflightError for an OSError or sqlite3.Error: `disk_full`, `output_unwritable`, or `job_damaged` for a
    damaged database. `what` names what is being written.
    """
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        if code == sqlite3.SQLITE_FULL or getattr(error, "errno", None) in DISK_FULL_ERRORS:
            raise InflightError(f"the disk has no room for {what}; free space on it", "disk_full") from None
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise InflightError(
                "the gateway's batches.sqlite is damaged; restore it from a backup, or delete it with all files and"
                " batches",
                "job_damaged",
            ) from None
        why = getattr(error, "strerror", None) or (error if code else type(error).__name__)
        raise InflightError(
            f"{what} can't be written: {why}; check the gateway's data directory", "output_unwritable"
        ) from None


def list_object(objects: Sequence[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    """Return a page of objects as OpenAI's lists are."""
    return {
        "object": "list",
        "data": objects,
        "first_id": objects[0]["id"] if objects else None,
        "last_id": objects[-1]["id"] if objects else None,
        "has_more": has_more,
    }


def new_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(16)}"


def is_id(value: object, prefix: str) -> bool:
    """Return whether it is an id as `new_id` makes them; nothing else may become a path."""
    return isinstance(value, str) and re.fullmatch(rf"{prefix}[0-9a-f]{{32}}", value) is not None


def shown_id(value: object) -> str:
    """Return an id for a message, whatever it is."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def tenant_key(tenant: str) -> bytes:
    """Return a tenant's name for the database; it may hold any character."""
    return tenant.encode("utf-8", "surrogatepass")


def private_directory(path: Path) -> Path:
    """Create a directory that only its owner can enter, and its missing parents."""
    if not path.is_dir():
        make_directory(path.parent)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        sync(path.parent)
    return path


def remove(path: Path) -> None:
    """Remove a file or a directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the disk has no links; durable once the directory is."""
    new = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
    try:
        try:
            os.link(source, new)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(source, new)
        os.chmod(new, 0o600)
        with new.open("rb") as file:
            os.fsync(file.fileno())
        new.rename(target)
    finally:
        new.unlink(missing_ok=True)
    sync(target.parent)
