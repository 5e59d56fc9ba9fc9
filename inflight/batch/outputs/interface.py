"""The seam between a job and an output that is not itself the file of lines that the job appends to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from inflight.batch.job.rows import RowStatus


class OutputWriter(Protocol):
    """Takes what a job has written down. Doing anything twice leaves what doing it once does.

    Raises BatchError: `output_invalid` for what will not fit however often it is tried, `output_failed` for what can't
    be written just now, `disk_full`, `package_missing`, and those of storages.
    """

    @property
    def is_incremental(self) -> bool:
        """Whether it takes answers while the job runs (tables); else it is made whole at the end."""

    def check(self) -> None:
        """Whether it could be written, before anything is asked: a table is there, a folder can be reached."""

    def normalize_id(self, id_: str) -> str:
        """The same for ids that can't stand side by side in the output; the id itself where all can."""

    def write_rows(self, lines: Iterable[bytes]) -> None:
        """Take these answers (lines of JSON), durably. For those that take rows."""

    def finalize(self, files: dict[RowStatus, Path]) -> list[str]:
        """Make the whole output of the job's files of lines (those that exist); the addresses of what was written."""

    def notes(self) -> list[str]:
        """What its owner should be told at the end, a sentence each: answers whose rows have gone from the table."""

    def find_differences(self, files: dict[RowStatus, Path]) -> Iterator[str]:
        """Reads the output again: the ids of answers that it lacks, or has otherwise."""

    def close(self) -> None:
        """Let connections go."""
