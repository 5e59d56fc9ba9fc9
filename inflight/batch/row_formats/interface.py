"""The seam between a job and what its rows mean."""

from __future__ import annotations

from typing import Protocol

from inflight_client import InflightError
from inflight_client.results import Generation

from inflight.batch.job.rows import InputRecord, InvalidRow, Row, RowResult


class RowFormat(Protocol):
    """Makes rows of records, and lines of what became of them. The lines of a greedy job are the same in each run."""

    def parse(self, number: int, record: InputRecord) -> Row | InvalidRow:
        """What a record asks for. Never raises: whatever is wrong with it is a Fault."""

    def format_answer(self, row: Row, answer: Generation, attempts: int) -> RowResult:
        """The line of an answer."""

    def format_failure(self, row: Row, error: InflightError, attempts: int) -> RowResult:
        """The line of a row that was refused or given up (error), or that must not be asked again (dead, for code
        `row_crashed_engine`)."""

    def format_invalid(self, invalid: InvalidRow) -> RowResult:
        """The line of a row that was never asked."""
