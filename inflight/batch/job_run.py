"""One run of a job: sends rows until there are none left, or until something ends it early."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from inflight_client import InflightError

from inflight.batch.dispatch.backend import Backend
from inflight.batch.dispatch.dispatcher import Dispatcher
from inflight.batch.dispatch.prefetcher import RowPrefetcher
from inflight.batch.dispatch.retrieval import Encoders, RetrievalStep
from inflight.batch.job.rows import Row, RowAnswer, RowStatus
from inflight.batch.outputs.table_writer import TableWriter
from inflight.batch.reporting.progress import JobState
from inflight.batch.reporting.progress_reporter import ProgressReporter
from inflight.batch.row_formats.retrieval import RetrievalRowFormat
from inflight.batch.session import JobSession
from inflight.batch.signals import CANCELLED, INTERRUPTED, StopSignals, stopping_message
from inflight.batch.state.checkpoint_thread import Checkpointer
from inflight.batch.state.state_replicator import StateReplicator

_REPORT_SECONDS = 1.0
_WAITING_AFTER_SECONDS = 3.0
"""Seconds without a server until the job is reported as waiting for one."""


class JobRun:
    """One run; `state` and `message` say why it ended, if that was before the last row."""

    def __init__(
        self,
        session: JobSession,
        backends: Sequence[Backend],
        reporter: ProgressReporter,
        replicator: StateReplicator,
        signals: StopSignals,
        on_message: Callable[[str], None],
        encoders: Encoders | None = None,
    ) -> None:
        """`encoders`: those of the job's retrieval, if it has one."""
        self.state, self.message = JobState.RUNNING, ""
        self._session, self._reporter, self._replicator = session, reporter, replicator
        self._signals, self._on_message = signals, on_message
        self._options = session.job.run_options
        self._prefetcher = RowPrefetcher(
            session.source, session.row_format, session.ledger, session.job, session.normalize_id
        )
        self._retrieval: RetrievalStep | None = None
        if encoders is not None:
            assert isinstance(session.row_format, RetrievalRowFormat)
            self._retrieval = RetrievalStep(
                self._prefetcher,
                session.job,
                session.row_format,
                encoders,
                self._on_row_done,
                lambda row: session.ledger.add(session.row_format.format_invalid(row)),
                session.bind_encoder,
                on_message,
            )
        self._dispatcher = Dispatcher(
            backends,
            self._options,
            self._retrieval or self._prefetcher,
            self._on_row_done,
            session.ledger,
            session.bind_build,
            on_message,
            session.job.encode,
            session.bind_dimensions if session.job.task == "embed" else None,
        )
        self._draining: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Run the job and save all its results. Raises BatchError if the job cannot continue."""
        loop = asyncio.get_running_loop()
        checkpoints = Checkpointer(
            self._session.ledger,
            self._options.checkpoint_seconds,
            self._session.started_at,
            self._checkpoint_callback(),
            lambda error: _from_thread(loop, self._stop, JobState.FAILED, str(error), 0.0),
        )
        checkpoints.start()
        reporting = loop.create_task(self._report_and_poll_cancel())
        reporting.add_done_callback(self._on_reporting_ended)
        self._prefetcher.start()
        try:
            if self._retrieval is not None:
                await self._retrieval.check()
            with self._signals.handled_by(lambda count: _from_thread(loop, self._on_signal, count)):
                await self._dispatcher.run()
            over = self._prefetcher.exhausted and self.state is JobState.RUNNING
        finally:
            self._prefetcher.stop()
            for task in filter(None, (reporting, self._draining)):
                task.cancel()
            if self._retrieval is not None:
                await self._retrieval.close()
            await self._dispatcher.close()
            await asyncio.to_thread(self._prefetcher.join)
            await asyncio.to_thread(checkpoints.finish)
        if over:
            self._session.ledger.end_of_input(self._prefetcher.next_number)

    def _checkpoint_callback(self) -> Callable[[], None]:
        """Return the callback for each checkpoint."""
        destination, ledger = self._session.output, self._session.ledger
        if destination is None or not destination.is_incremental:
            return lambda: self._replicator.upload_if_due(ledger)
        return TableWriter(ledger, self._session.directory.result_file(RowStatus.OK), destination).run

    def _on_row_done(self, row: Row, result: RowAnswer | InflightError, attempts: int) -> None:
        form = self._session.row_format
        if isinstance(result, InflightError):
            self._session.ledger.add(form.format_failure(row, result, attempts))
        else:
            self._session.ledger.add(form.format_answer(row, result, attempts))

    async def _report_and_poll_cancel(self) -> None:
        """Report progress, and check for a request to cancel."""
        last_report = time.monotonic()
        while True:
            servers = self._dispatcher.servers()
            if any(server.up for server in servers):
                last_report = time.monotonic()
            state = JobState.WAITING if time.monotonic() - last_report > _WAITING_AFTER_SECONDS else JobState.RUNNING
            if self._draining is not None:
                state = JobState.DRAINING  # the final state is reported at the end
            self._reporter.report(state, self.message, self._dispatcher.pending_retries, servers)
            if self._session.directory.cancel.exists():
                self._stop(JobState.CANCELLED, CANCELLED, 0.0)
            await asyncio.sleep(_REPORT_SECONDS)

    def _on_reporting_ended(self, reporting: asyncio.Task[None]) -> None:
        """Stop the job if reporting failed, since it could be neither observed nor cancelled any more."""
        if not reporting.cancelled() and (error := reporting.exception()) is not None:
            self._stop(JobState.FAILED, f"its progress can't be reported: {error!r}", 0.0)

    def _on_signal(self, count: int) -> None:
        notice = self._options.drain_seconds
        self._stop(JobState.STOPPED, INTERRUPTED, notice)
        if count > 1:
            self._drain(0.0)
        else:
            self._on_message(stopping_message(notice))

    def _stop(self, state: JobState, message: str, seconds: float) -> None:
        """Send nothing more, and end requests in flight after this many seconds."""
        if self._draining is None:
            self.state, self.message = state, message
            self._prefetcher.stop()
            self._dispatcher.stop()
            self._drain(seconds)

    def _drain(self, seconds: float) -> None:
        if self._draining is not None:
            self._draining.cancel()
        self._draining = asyncio.get_running_loop().create_task(self._dispatcher.drain(seconds))


def _from_thread(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *values: object) -> None:
    loop.call_soon_threadsafe(call, *values)
