"""The interface between a job and the meaning of its rows."""

from __future__ import annotations

from typing import Protocol

from inflight_client import InflightError

from inflight.batch.job.rows import InputRecord, InvalidRow, Row, RowAnswer, RowResult


class RowFormat(Protocol):
    """Parses records to rows, and formats results as lines. With greedy decoding, lines are the same in each run."""

    def parse(self, number: int, record: InputRecord) -> Row | InvalidRow:
        """Parse a record. Never raises: anything invalid is an InvalidRow."""

    def format_answer(self, row: Row, answer: RowAnswer, attempts: int) -> RowResult:
        """Format an answer."""

    def format_failure(self, row: Row, error: InflightError, attempts: int) -> RowResult:
        """Format a row that was refused or given up (error), or that must not be sent again (dead, for code
        `row_crashed_engine`)."""

    def format_invalid(self, invalid: InvalidRow) -> RowResult:
        """Format a row that was never sent."""
