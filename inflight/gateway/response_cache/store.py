"""Stored answers, in an SQLite file that the processes of a gateway share. What fails there is a miss."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import sqlite3
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from inflight.common.sqlite import locked, open_database, transaction

T = TypeVar("T")
Generation = int
"""Identifies the entries of one file that were stored between two clearings. No other file begins with the same."""
FILE = "responses.sqlite"
"""Its name in the gateway's state directory."""
_BUSY_SECONDS, _CLEAR_BUSY_SECONDS = 0.25, 5.0
_MOST_REMOVED = 100
"""Entries that make room for a new one; more may be too many since the bound was lowered."""
_SCHEMA = """
-- `content`: request, finish reasons and wire, compressed, with zlib's checksum
CREATE TABLE IF NOT EXISTS entries (
    digest BLOB PRIMARY KEY, generation INTEGER, stored REAL, content BLOB
);
CREATE INDEX IF NOT EXISTS by_age ON entries (stored);
"""
_USED = """
SELECT (page_count - freelist_count) * page_size FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()
"""
logger = logging.getLogger("inflight.gateway")


class Entry(NamedTuple):
    """What was sent of an answer's body, and how each choice ended."""

    wire: bytes
    finish_reasons: tuple[str, ...]


class ResponseStore:
    """Entries by the bytes of their requests, which have no zeros. One thread does all work, in its order."""

    def __init__(self, path: Path, max_bytes: int, max_age: float) -> None:
        """`max_bytes`: of the file; `max_age`: of an entry, in seconds."""
        self.path, self.max_age = path, max_age
        self._max_bytes = max_bytes
        self._thread = ThreadPoolExecutor(1, "response-cache")
        self._database: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        """Which file that is, since a user may delete it."""
        self._said: set[str] = set()

    async def find(self, request: bytes, max_age: float) -> tuple[Entry | None, Generation | None]:
        """Return the entry of a request that is not older, and the store's generation, for `keep`; None: unusable."""
        return await self._run(lambda: self._find(request, max_age), (None, None))

    async def keep(self, request: bytes, entry: Entry, generation: Generation) -> None:
        """Keep an answer whose computing began in this generation, unless there is a later one."""
        await self._run(lambda: self._keep(request, entry, generation), None)

    def close(self) -> None:
        self._thread.shutdown()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
        self._database = None

    async def _run(self, work: Callable[[], T], otherwise: T) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (sqlite3.Error, OSError, TypeError, ValueError, zlib.error) as error:  # the last three: a damaged row
            if str(error) not in self._said:
                self._said.add(str(error))
                logger.error(
                    "The response cache %s can't be used, so answers are computed: %s; if this stays so, stop the"
                    " gateway and delete %s*",
                    *(self.path, error, self.path),
                )
            return otherwise

    def _open(self) -> sqlite3.Connection:
        if self._file != _file_at(self.path):
            self._disconnect()
        if self._database is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._database, self._file = _opened(self.path, _BUSY_SECONDS), _file_at(self.path)
        return self._database

    def _find(self, request: bytes, max_age: float) -> tuple[Entry | None, Generation | None]:
        database, now = self._open(), time.time()
        generation = _generation(database)
        row = database.execute(
            "SELECT content FROM entries WHERE digest = ? AND generation = ? AND stored > ? AND stored <= ?",
            (_digest(request), generation, now - max_age, now),
        ).fetchone()
        if row is None:
            return None, generation
        same, reasons, wire = zlib.decompress(row[0]).split(b"\0", 2)
        return (Entry(wire, tuple(reasons.decode().split())) if same == request else None), generation

    def _keep(self, request: bytes, entry: Entry, generation: Generation) -> None:
        database, now = self._open(), time.time()
        content = zlib.compress(b"\0".join((request, " ".join(entry.finish_reasons).encode(), entry.wire)), 1)
        with transaction(database):
            if _generation(database) != generation:
                return
            database.execute("DELETE FROM entries WHERE stored <= ? OR stored > ?", (now - self.max_age, now))
            row = (_digest(request), generation, now, content)
            database.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", row)
            for _ in range(_MOST_REMOVED):
                if database.execute(_USED).fetchone()[0] <= self._max_bytes:
                    break
                database.execute("DELETE FROM entries WHERE stored = (SELECT min(stored) FROM entries)")


def clear(path: Path) -> int:
    """Remove all entries, also those that are being computed, and return how many there were.

    They are not found any more at once, before the file is made small. Raises sqlite3.Error, OSError.
    """
    removed = 0
    try:
        with closing(_opened(path, _CLEAR_BUSY_SECONDS)) as database:
            (removed,) = database.execute("SELECT count(*) FROM entries").fetchone()
            with transaction(database):
                new = _generation(database) + 1
                database.execute(f"PRAGMA user_version = {new}")
            database.execute("DELETE FROM entries WHERE generation != ?", (new,))
            with suppress(sqlite3.OperationalError):  # in use: the room is used again by later entries
                database.execute("VACUUM")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise
        with locked(path):  # there is no room to write; those who have it open notice
            for ending in ("", "-wal", "-shm"):
                path.with_name(path.name + ending).unlink(missing_ok=True)
    return removed


def _file_at(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _opened(path: Path, timeout: float) -> sqlite3.Connection:
    database = open_database(path, _SCHEMA, timeout=timeout)
    database.execute("PRAGMA synchronous=NORMAL")  # a power failure may take the last entries, and nothing else
    if not _generation(database):
        database.execute(f"PRAGMA user_version = {1 + secrets.randbelow(2**30)}")
    return database


def _generation(database: sqlite3.Connection) -> Generation:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def _digest(request: bytes) -> bytes:
    return hashlib.blake2b(request, digest_size=16).digest()
