"""The state's database: its tables, and how it is opened."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from inflight.batch.errors import BatchError
from inflight.batch.failpoints import failpoint
from inflight.common.atomic_files import open_private

FORMAT = 1

_TABLES = """
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
-- ids that rows have, by hash: whoever comes later with the same is a duplicate
CREATE TABLE ids(id BLOB PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
-- rows that are done while one before them is not (the text of a dead letter is written already)
CREATE TABLE results(number INTEGER PRIMARY KEY, status TEXT NOT NULL, text BLOB);
CREATE TABLE failures(number INTEGER PRIMARY KEY, line INTEGER NOT NULL, id TEXT, status TEXT NOT NULL,
                      code TEXT NOT NULL, message TEXT NOT NULL, attempts INTEGER NOT NULL);
-- rows under which engines died, until they are done
CREATE TABLE suspects(number INTEGER PRIMARY KEY, deaths INTEGER NOT NULL);
-- what becomes of rows that are asked once more
CREATE TABLE retried(number INTEGER PRIMARY KEY, line INTEGER, id TEXT, status TEXT, text BLOB, code TEXT, message TEXT,
                     input_tokens INTEGER, output_tokens INTEGER, attempts INTEGER);
"""


class StateDatabase:
    """One connection, for one process alone; its owner locks it among threads. Everything waits for `commit`.

    A commit is on the disk when it returns (WAL, synchronous FULL). The lock is exclusive, so the WAL needs no shared
    memory, and a disk of the network will do.
    """

    def __init__(self, path: Path) -> None:
        new = not path.exists()
        if new:  # SQLite gives its other files the mode of this one
            open(path, "ab", opener=open_private).close()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
        try:
            self._set_up(new)
        except sqlite3.DatabaseError as error:
            self._connection.close()
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise BatchError(f"{path} is damaged ({error}); begin a new job", "job_damaged") from None

    def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:
        self._check()
        return self._connection.execute(sql, values)

    def execute_many(self, sql: str, values: Any) -> int:
        """How many rows were changed."""
        self._check()
        return self._connection.executemany(sql, values).rowcount

    def get(self, name: str, default: Any = None) -> Any:
        found = self._connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return default if found is None else json.loads(found[0])

    def put(self, name: str, value: Any) -> None:
        self.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, json.dumps(value)))

    def commit(self) -> None:
        failpoint("commit")
        self.execute("COMMIT")
        failpoint("committed")
        self._begin()

    def snapshot(self, path: Path) -> None:
        """A copy of what is committed, as a file of its own."""
        self.execute("ROLLBACK")
        try:
            open(path, "wb", opener=open_private).close()
            self._connection.execute("VACUUM INTO ?", (str(path),))
        finally:
            self._begin()

    def _check(self) -> None:
        """A full disk ends a transaction by itself; what came behind would last at once, without what was before."""
        if not self._connection.in_transaction:
            raise sqlite3.OperationalError("what no commit had seen was taken back")

    def close(self) -> None:
        """Whatever was not committed is lost."""
        if self._connection.in_transaction:
            self.execute("ROLLBACK")
        self._connection.close()

    def _begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def _set_up(self, new: bool) -> None:
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL", "cache_size=-32768"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._begin()
        made = self.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not made:
            for statement in _TABLES.split(";"):
                self.execute(statement)
            self.put("format", FORMAT)
            self.commit()
        elif self.get("format") != FORMAT:
            raise BatchError(
                f"the job's state is of format {self.get('format')} and this version of inflight knows {FORMAT}; begin"
                " a new job, or go on with the version that began it",
                "job_damaged",
            )
