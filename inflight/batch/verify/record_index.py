"""An index of records by row, kept on disk because there may be very many rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from inflight.batch.job.rows import RowStatus


class RecordIndex:
    """A temporary database for the index.

    First all records are added, then each row is matched with its record; the remaining records belong to no row.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(RowStatus, 0)
        """The number of records by status."""
        self._base = sqlite3.connect("", isolation_level=None)
        self._base.execute("PRAGMA cache_size=-65536")
        self._base.execute("PRAGMA journal_mode=OFF")
        self._base.execute("PRAGMA synchronous=OFF")
        self._base.execute("CREATE TABLE records(id TEXT PRIMARY KEY, n INTEGER, taken INTEGER) WITHOUT ROWID")
        self._base.execute("CREATE TABLE dead(line INTEGER PRIMARY KEY, n INTEGER, taken INTEGER)")
        self._base.execute("BEGIN")  # one transaction for everything, since nothing must be durable

    def add(self, kind: RowStatus, keys: list[str]) -> None:
        """Add records of answers or errors by id."""
        self.counts[kind] += len(keys)
        self._base.executemany(
            "INSERT INTO records VALUES (?, 1, 0) ON CONFLICT (id) DO UPDATE SET n = n + 1", [(key,) for key in keys]
        )

    def add_dead_letters(self, lines: list[int]) -> None:
        """Add dead letters by line number."""
        self.counts[RowStatus.DEAD] += len(lines)
        self._base.executemany(
            "INSERT INTO dead VALUES (?, 1, 0) ON CONFLICT (line) DO UPDATE SET n = n + 1", [(line,) for line in lines]
        )

    def match_row(self, line: int, id_: str | None) -> bool:
        """Return whether this row has a record that no earlier row has matched."""
        dead = self._base.execute("UPDATE dead SET taken = 1 WHERE line = ? AND taken = 0", (line,))
        if dead.rowcount:
            return True
        return bool(self._base.execute("UPDATE records SET taken = 1 WHERE id = ? AND taken = 0", (id_,)).rowcount)

    def duplicates(self) -> Iterator[str]:
        """Yield rows with more than one record."""
        yield from (row[0] for row in self._base.execute("SELECT id FROM records WHERE n > 1"))
        yield from (f"line {row[0]}" for row in self._base.execute("SELECT line FROM dead WHERE n > 1"))

    def unknown_records(self) -> Iterator[str]:
        """Yield records that belong to no row."""
        yield from (row[0] for row in self._base.execute("SELECT id FROM records WHERE taken = 0"))
        yield from (f"line {row[0]}" for row in self._base.execute("SELECT line FROM dead WHERE taken = 0"))

    def close(self) -> None:
        self._base.close()
