"""The seam between a job and what its rows mean."""

from __future__ import annotations

from typing import Protocol

from inflight_client import InflightError
from inflight_client.results import Generation

from inflight.batch.row import Fault, Outcome, Record, Row


class Form(Protocol):
    """Makes rows of records, and lines of what became of them. The lines of a greedy job are the same in each run."""

    def row(self, number: int, record: Record) -> Row | Fault:
        """What a record asks for. Never raises: whatever is wrong with it is a Fault."""

    def answered(self, row: Row, answer: Generation, attempts: int) -> Outcome:
        """The line of an answer."""

    def failed(self, row: Row, error: InflightError, attempts: int) -> Outcome:
        """The line of a row that was refused or given up (error), or that must not be asked again (dead, for code
        `row_kills_engine`)."""

    def faulty(self, fault: Fault) -> Outcome:
        """The line of a row that was never asked."""
