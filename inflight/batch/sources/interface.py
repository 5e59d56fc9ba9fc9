"""The interface between a job and the source of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from inflight.batch.job.rows import InputRecord, Position
from inflight.batch.job.spec import FileFormat


class RowSource(Protocol):
    """Rows in an order that is the same each time, read as a stream with little memory.

    All methods raise BatchError: `input_not_found`, `input_invalid` (the whole input is not in its format),
    `package_missing`, and those of storages. Errors of a single row are in its InputRecord.
    """

    format: FileFormat
    """The format of the rows."""

    key_column: str | None = None
    """The column that identifies rows, if the source has one itself: a table's key."""

    columns: list[str] | None = None
    """All columns; None if each row has its own."""

    total: int | None = None
    """The number of rows, if it is known without reading them all."""

    fingerprint: str
    """A value that is the same while the input is unchanged: from its size and samples, a storage's tag, or a table's
    range."""

    def read(self, after: Position | None = None, line: int = 0) -> Iterator[InputRecord]:
        """Yield the rows, or those after a record's `position`; that record had the number `line`."""

    def check_unchanged(self) -> None:
        """Raises BatchError `input_changed` if rows that were added or removed since the start have moved others.

        Not needed if the fingerprint detects that.
        """
        return

    def fraction_read(self, position: Position) -> float | None:
        """Return the fraction of the input before a position, between 0 and 1; None if unknown."""
        return None

    def close(self) -> None:
        """Close what is open between reads."""
        return
