"""The interface between a job and an output that is not the job's own answers file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from inflight.batch.job.rows import RowStatus

OnMessage = Callable[[str], None]


def ignore_message(sentence: str) -> None:
    pass


class OutputWriter(Protocol):
    """Writes the answers of a job to an output. All operations are idempotent.

    Raises BatchError: `output_invalid` for permanent errors, `output_failed` for temporary ones, `disk_full`,
    `package_missing`, and those of storages.
    """

    is_incremental: bool = False
    """Whether answers are written while the job runs (tables); otherwise the output is created at the end."""

    def check(self) -> None:
        """Check that the output can be written, before any row is sent: the table exists, the folder is reachable."""

    def check_dimensions(self, dimensions: int) -> None:
        """Check that the output can contain vectors of this size, before any row is sent."""
        return

    def normalize_id(self, id_: str) -> str:
        """Return the same value for ids that the output cannot distinguish; the id itself if it can."""
        return id_

    def write_rows(self, lines: Iterable[bytes]) -> None:
        """Write these answers (JSON lines) durably; only for incremental outputs."""
        return

    def finalize(self, files: dict[RowStatus, Path], on_message: OnMessage = ignore_message) -> list[str]:
        """Complete the output from the job's existing files of lines; return the addresses that were written.

        `on_message` receives sentences for people.
        """

    def notes(self) -> list[str]:
        """Return sentences for the user at the end, such as answers whose rows are missing from the table."""
        return []

    def find_differences(self, files: dict[RowStatus, Path]) -> Iterator[str]:
        """Read the output again; yield the ids of answers that are missing or different."""

    def close(self) -> None:
        """Close all connections."""
        return
