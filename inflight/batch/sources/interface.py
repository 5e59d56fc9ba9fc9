"""The seam between a job and where its rows lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from inflight.batch.job.rows import InputRecord, Position
from inflight.batch.job.spec import FileFormat


class RowSource(Protocol):
    """Rows in an order that is the same each time. Read as a stream: never more than a little of it is in memory.

    All of it raises BatchError: `input_not_found`, `input_invalid` (not what its format says, as a whole),
    `package_missing`, and those of storages. What is wrong with a single row is in its Record.
    """

    format: FileFormat
    """How the rows lie there."""

    key_column: str | None
    """The column that tells rows apart, where they have one by themselves: a table's key."""

    columns: list[str] | None
    """All there are; None where each row has its own."""

    @property
    def fingerprint(self) -> str:
        """The same as long as the input is: of its size and some of it, what a storage says, how far a table goes."""

    @property
    def total(self) -> int | None:
        """Rows, where they can be told without reading them all; else None."""

    def read(self, after: Position | None = None, line: int = 0) -> Iterator[InputRecord]:
        """The rows, or those after a record's `position`; that record had the number `line`."""

    def check_unchanged(self) -> None:
        """Raises BatchError `input_changed` where rows that came or went since the job began have moved others.

        Nothing to do where the fingerprint tells of it.
        """

    def fraction_read(self, position: Position) -> float | None:
        """How much of the input lies before a position, between 0 and 1; None where nobody knows."""
