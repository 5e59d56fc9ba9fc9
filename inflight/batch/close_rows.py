"""Ends a job whose rows will not be sent any more."""

from __future__ import annotations

from inflight_client import InflightError

from inflight.batch.dispatch.prefetcher import RowPrefetcher
from inflight.batch.session import JobSession

_CHECKPOINT_ROWS = 5_000


def close_rows(session: JobSession, error: InflightError) -> None:
    """Give each row without a result this error, durably. Raises BatchError.

    If it is interrupted, the next call continues with the rows that are left.
    """
    rows = RowPrefetcher(session.source, session.row_format, session.ledger, session.job, session.normalize_id)
    for number, row in enumerate(rows.unfinished_rows(), 1):
        session.ledger.add(session.row_format.format_failure(row, error, 0))
        if number % _CHECKPOINT_ROWS == 0:
            session.ledger.checkpoint()
    session.ledger.checkpoint()
    session.ledger.end_of_input(rows.next_number)
