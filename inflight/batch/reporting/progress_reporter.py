"""Reports the progress of a running job each second, to its progress file and its display."""

from __future__ import annotations

from collections.abc import Callable

from inflight.batch.job.spec import RunOptions
from inflight.batch.queues.source import MessageQueue
from inflight.batch.reporting.cost import JobCost
from inflight.batch.reporting.progress import JobProgress, JobState, ServerStatus, publish_progress
from inflight.batch.reporting.throughput import RateEstimator
from inflight.batch.session import JobSession
from inflight.batch.state.retry_ledger import RetryLedger


class ProgressReporter:
    """Reports the progress of one run; created at its start."""

    def __init__(self, session: JobSession, options: RunOptions, on_progress: Callable[[JobProgress], None]) -> None:
        self._session, self._options, self._on_progress = session, options, on_progress
        self._total = session.total
        self._rate_estimator = RateEstimator(
            session.ledger.counts, self._total, self._input_fraction(), retries_left=self._retries_left
        )

    def report(
        self,
        state: JobState,
        message: str = "",
        pending_retries: int = 0,
        servers: tuple[ServerStatus, ...] = (),
        expected: str = "",
    ) -> JobProgress:
        """Report the progress, and return it. `expected`: how a deadline will be kept."""
        ledger, queue = self._session.ledger, self._session.source
        progress = JobProgress.now(
            state,
            message,
            servers,
            counts=ledger.counts,
            total=self._total,
            input_fraction=self._input_fraction(),
            pending_retries=pending_retries,
            retries_left=self._retries_left,
            out_of_order=ledger.out_of_order,
            next_row=ledger.next - self._session.job.input.part.first + 1,
            throughput=self._rate_estimator.update(ledger.counts, self._input_fraction(), self._retries_left),
            cost=JobCost.from_counts(ledger.counts, self._options),
            expected=expected,
            queue_messages=queue.lag if isinstance(queue, MessageQueue) else None,
            queue_age=queue.age if isinstance(queue, MessageQueue) else None,
        )
        publish_progress(self._session.directory, progress, self._on_progress)
        return progress

    @property
    def _retries_left(self) -> int:
        return self._session.ledger.remaining if isinstance(self._session.ledger, RetryLedger) else 0

    def _input_fraction(self) -> float | None:
        """Rows are sent in another order than they are read, so scale by the rows that are done."""
        number, position = self._session.ledger.read_position
        rows = number - self._session.job.input.part.first
        share = 0.0 if position is None else self._session.source.fraction_read(position)
        if share is None or rows <= 0:
            return share
        done = self._session.ledger.counts.done - self._retries_left
        limit = self._session.job.input.limit
        return min(1.0, max(share * done / rows, done / limit if limit else 0.0))
