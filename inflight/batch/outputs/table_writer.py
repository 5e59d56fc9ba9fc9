"""Copies answers from the job's file of lines to a table while the job runs."""

from __future__ import annotations

from pathlib import Path

from inflight.batch.errors import BatchError
from inflight.batch.failpoints import failpoint
from inflight.batch.job.rows import RowStatus
from inflight.batch.outputs.interface import OutputWriter
from inflight.batch.state.ledger import Ledger

_ROWS_PER_TRANSACTION = 1000
"""Rows per transaction in the table."""


class TableWriter:
    """Writes the answers between its position and the committed end of the file, then advances the position.

    If the process dies in between, the same rows are written again, which is idempotent.
    """

    def __init__(self, ledger: Ledger, path: Path, output: OutputWriter) -> None:
        self._ledger, self._path, self._output = ledger, path, output
        self._offset = 0

    def run(self) -> None:
        """Write everything that is committed. Raises BatchError."""
        end = self._ledger.lengths()[RowStatus.OK]
        self._offset = int(self._ledger.recall("delivered", 0))
        while self._offset < end:
            lines, length = self._lines(end)
            failpoint("delivery")
            self._output.write_rows(lines)
            failpoint("delivered")
            self._offset += length
            self._ledger.remember("delivered", self._offset)

    def _lines(self, end: int) -> tuple[list[bytes], int]:
        lines: list[bytes] = []
        length = 0
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                lines.append(line.rstrip(b"\n"))
                length += len(line)
                if len(lines) >= _ROWS_PER_TRANSACTION or self._offset + length >= end:
                    return lines, length
        raise BatchError(f"{self._path} is shorter than the job's state says; start a new job", "job_damaged")
