"""The state's database: its schema, and how it is opened."""

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
-- ids that rows have, by hash: a later row with the same id is a duplicate
CREATE TABLE ids(id BLOB PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
-- rows that are done before an earlier one (a dead letter is already written, without text here)
CREATE TABLE results(number INTEGER PRIMARY KEY, status TEXT NOT NULL, text BLOB);
CREATE TABLE failures(number INTEGER PRIMARY KEY, line INTEGER NOT NULL, id TEXT, status TEXT NOT NULL,
                      code TEXT NOT NULL, message TEXT NOT NULL, attempts INTEGER NOT NULL);
-- unfinished rows with engine crashes
CREATE TABLE suspects(number INTEGER PRIMARY KEY, deaths INTEGER NOT NULL);
-- rows to retry, and their new results
CREATE TABLE retried(number INTEGER PRIMARY KEY, line INTEGER, id TEXT, status TEXT, text BLOB, code TEXT, message TEXT,
                     input_tokens INTEGER, output_tokens INTEGER, attempts INTEGER);
"""
_LATER_TABLES = """
-- transcribed blocks of rows that have no answer yet, by the key of the request
CREATE TABLE IF NOT EXISTS blocks(key BLOB, number INTEGER, value BLOB NOT NULL, PRIMARY KEY(key, number)) WITHOUT ROWID
"""


class StateDatabase:
    """One connection of a single process; its owner synchronizes threads. Nothing is durable before `commit`.

    A commit is on disk when it returns (WAL, synchronous FULL). The lock is exclusive, so the WAL needs no shared
    memory, and a network disk works.
    """

    def __init__(self, path: Path) -> None:
        new = not path.exists()
        if new:  # SQLite gives its other files the same mode
            open(path, "ab", opener=open_private).close()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
        try:
            self._set_up(new)
        except sqlite3.DatabaseError as error:
            self._connection.close()
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise BatchError(f"{path} is damaged ({error}); start a new job", "job_damaged") from None

    def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:
        self._check()
        return self._connection.execute(sql, values)

    def execute_many(self, sql: str, values: Any) -> int:
        """Execute for all values; return the number of changed rows."""
        self._check()
        return self._connection.executemany(sql, values).rowcount

    def get(self, name: str, default: Any = None) -> Any:
        row = self._connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return default if row is None else json.loads(row[0])

    def put(self, name: str, value: Any) -> None:
        self.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, json.dumps(value)))

    def commit(self) -> None:
        failpoint("commit")
        self.execute("COMMIT")
        failpoint("committed")
        self._begin()

    def snapshot(self, path: Path) -> None:
        """Copy the committed state to a separate file."""
        self.execute("ROLLBACK")
        try:
            open(path, "wb", opener=open_private).close()
            self._connection.execute("VACUUM INTO ?", (str(path),))
        finally:
            self._begin()

    def _check(self) -> None:
        """Check that the transaction is still open. A full disk rolls it back, and later statements would be committed
        without the earlier ones."""
        if not self._connection.in_transaction:
            raise sqlite3.OperationalError("uncommitted changes were rolled back")

    def close(self) -> None:
        """Close the database; uncommitted changes are lost."""
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
                f"the job's state is of format {self.get('format')}, but this version of inflight supports {FORMAT}; "
                f"start a new job, or resume with the version that started it",
                "job_damaged",
            )
        self.execute(_LATER_TABLES)
