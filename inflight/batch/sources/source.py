"""The seam between a job and where its rows lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from inflight.batch.row import Position, Record


class Source(Protocol):
    """Rows in an order that is the same each time. Read as a stream: never more than a little of it is in memory.

    All of it raises BatchError: `input_not_found`, `input_invalid` (not what its format says, as a whole),
    `package_missing`, and those of storages. What is wrong with a single row is in its Record.
    """

    @property
    def fingerprint(self) -> str:
        """The same as long as the input is: size, time and a hash of some of it, or what a storage says instead."""

    @property
    def total(self) -> int | None:
        """Rows, where they can be told without reading them all; else None."""

    def read(self, after: Position | None = None, line: int = 0) -> Iterator[Record]:
        """The rows, or those after a record's `position`; that record had the number `line`."""

    def share_read(self, position: Position) -> float | None:
        """How much of the input lies before a position, between 0 and 1; None where nobody knows."""
