"""Which rows have a record: kept on disk, so that the rows may be as many as there are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from inflight.batch.job.rows import RowStatus


class RecordIndex:
    """A database of its own, without a name, that goes with it.

    First the records are noted, then the rows are taken, each with the record that is its own; what is left over then
    belongs to no row.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(RowStatus, 0)
        """Records by their kind."""
        self._base = sqlite3.connect("", isolation_level=None)
        self._base.execute("PRAGMA cache_size=-65536")
        self._base.execute("PRAGMA journal_mode=OFF")
        self._base.execute("PRAGMA synchronous=OFF")
        self._base.execute("CREATE TABLE records(id TEXT PRIMARY KEY, n INTEGER, taken INTEGER) WITHOUT ROWID")
        self._base.execute("CREATE TABLE dead(line INTEGER PRIMARY KEY, n INTEGER, taken INTEGER)")
        self._base.execute("BEGIN")  # one transaction for all: nothing of it is to last

    def add(self, kind: RowStatus, keys: list[str]) -> None:
        """Records of answers or errors, by their ids."""
        self.counts[kind] += len(keys)
        self._base.executemany(
            "INSERT INTO records VALUES (?, 1, 0) ON CONFLICT (id) DO UPDATE SET n = n + 1", [(key,) for key in keys]
        )

    def add_dead_letters(self, lines: list[int]) -> None:
        """Dead letters, by the numbers of their lines."""
        self.counts[RowStatus.DEAD] += len(lines)
        self._base.executemany(
            "INSERT INTO dead VALUES (?, 1, 0) ON CONFLICT (line) DO UPDATE SET n = n + 1", [(line,) for line in lines]
        )

    def match_row(self, line: int, id_: str | None) -> bool:
        """Whether this row has a record, that no earlier row has taken."""
        dead = self._base.execute("UPDATE dead SET taken = 1 WHERE line = ? AND taken = 0", (line,))
        if dead.rowcount:
            return True
        return bool(self._base.execute("UPDATE records SET taken = 1 WHERE id = ? AND taken = 0", (id_,)).rowcount)

    def duplicates(self) -> Iterator[str]:
        """Whose record is there more than once."""
        yield from (row[0] for row in self._base.execute("SELECT id FROM records WHERE n > 1"))
        yield from (f"line {row[0]}" for row in self._base.execute("SELECT line FROM dead WHERE n > 1"))

    def unknown_records(self) -> Iterator[str]:
        """Whose record belongs to no row."""
        yield from (row[0] for row in self._base.execute("SELECT id FROM records WHERE taken = 0"))
        yield from (f"line {row[0]}" for row in self._base.execute("SELECT line FROM dead WHERE taken = 0"))

    def close(self) -> None:
        self._base.close()
