"""One run of a job: sends rows until there are none left, or until something ends it early."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from inflight_client import InflightError
from inflight_client.audio.transcription import Transcription

from inflight.batch.dispatch.backend import Backend
from inflight.batch.dispatch.cascade import Cascade, Sender
from inflight.batch.dispatch.dispatcher import Dispatcher, NotedCrashes
from inflight.batch.dispatch.identical_rows import IdenticalRows, request_key
from inflight.batch.dispatch.message_prefetcher import MessagePrefetcher
from inflight.batch.dispatch.prefetcher import RowPrefetcher
from inflight.batch.dispatch.retrieval import Encoders, RetrievalStep
from inflight.batch.dispatch.row_queue import Feed, OnRowDone
from inflight.batch.job.deadline import seconds_until
from inflight.batch.job.rows import Row, RowAnswer, RowResult, RowStatus, add_tokens, answer_tokens
from inflight.batch.outputs.table_writer import TableWriter
from inflight.batch.pace import Pace
from inflight.batch.queues.source import MessageQueue
from inflight.batch.reporting.progress import JobState
from inflight.batch.reporting.progress_reporter import ProgressReporter
from inflight.batch.row_formats.answer_check import Condition
from inflight.batch.row_formats.retrieval import RetrievalRowFormat
from inflight.batch.session import JobSession
from inflight.batch.signals import CANCELLED, INTERRUPTED, StopSignals, stopping_message
from inflight.batch.state.checkpoint_thread import Checkpointer
from inflight.batch.state.queue_ledger import QueueLedger
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
        refiners: Sequence[Backend] = (),
    ) -> None:
        """`encoders`: those of the job's retrieval, if it has one; `refiners`: the servers of its larger model."""
        self.state, self.message = JobState.RUNNING, ""
        self._session, self._reporter, self._replicator = session, reporter, replicator
        self._signals, self._on_message = signals, on_message
        self._options = session.job.run_options
        self._prefetcher = self._create_prefetcher()
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
        self._sender = self._create_sender(backends, refiners)
        self._pace = Pace(self._options.priority or 0) if self._options.finish_by is not None else None
        self._draining: asyncio.Task[None] | None = None

    def _create_prefetcher(self) -> RowPrefetcher:
        session = self._session
        if isinstance(session.source, MessageQueue) and isinstance(session.ledger, QueueLedger):
            return MessagePrefetcher(session.source, session.row_format, session.ledger, session.job)
        return RowPrefetcher(session.source, session.row_format, session.ledger, session.job, session.normalize_id)

    def _create_sender(self, backends: Sequence[Backend], refiners: Sequence[Backend]) -> Sender:
        """Return what sends the rows: each once, of identical ones only the first, and some to a second model then."""
        session, options, on_message = self._session, self._options, self._on_message
        feed: Feed = self._retrieval or self._prefetcher
        on_row_done: OnRowDone = self._on_row_done
        if options.dedupe:
            feed = identical = IdenticalRows(feed, on_row_done, self._on_copy)
            on_row_done = identical.on_row_done
        check_dimensions = session.bind_dimensions if session.job.task == "embed" else None

        def first(feed: Feed, on_row_done: OnRowDone) -> Dispatcher:
            return Dispatcher(
                *(backends, options, feed, on_row_done, session.ledger, session.bind_build, on_message),
                session.job.encode,
                check_dimensions,
            )

        def second(feed: Feed, on_row_done: OnRowDone) -> Dispatcher:
            return Dispatcher(
                refiners, options, feed, on_row_done, NotedCrashes(), session.bind_refine_build, on_message
            )

        if session.job.refine is None:
            return first(feed, on_row_done)
        return Cascade(feed, on_row_done, Condition(session.job.refine.when), first, second, on_message)

    async def run(self) -> None:
        """Run the job and save all its results. Raises BatchError if the job cannot continue."""
        loop = asyncio.get_running_loop()
        on_checkpoint = self._checkpoint_callback()
        checkpoints = Checkpointer(
            self._session.ledger,
            self._options.checkpoint_seconds,
            self._session.started_at,
            on_checkpoint,
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
                await self._sender.run()
            over = self._prefetcher.exhausted and self.state is JobState.RUNNING
        finally:
            self._prefetcher.stop()
            for task in filter(None, (reporting, self._draining)):
                task.cancel()
            if self._retrieval is not None:
                await self._retrieval.close()
            await self._sender.close()
            await asyncio.to_thread(self._prefetcher.join)
            await asyncio.to_thread(checkpoints.finish)
        if self._options.forever and isinstance(self._session.ledger, QueueLedger):
            self._session.ledger.seal(discard=self._session.output is not None)
        if over:
            self._session.ledger.end_of_input(self._prefetcher.next_number)

    def _checkpoint_callback(self) -> Callable[[], None]:
        """Return the callback for each checkpoint. One of a queue has written its table before it is returned: messages
        that come again are acknowledged at once."""
        source, destination, ledger = self._session.source, self._session.output, self._session.ledger
        write: Callable[[], None]
        is_table = destination is not None and destination.is_incremental
        if destination is not None and is_table:
            write = TableWriter(ledger, self._session.directory.result_file(RowStatus.OK), destination).run
        else:
            write = partial(self._replicator.upload_if_due, ledger)
        if not isinstance(source, MessageQueue) or not isinstance(ledger, QueueLedger):
            return write

        def settle() -> None:
            recorded = ledger.take_recorded()
            write()
            source.settle(recorded)
            ledger.forget(self._options.remember_seconds)
            if self._options.forever:
                ledger.seal(self._options.segment_rows, self._options.segment_seconds, discard=is_table)

        write()
        return settle

    def _on_row_done(self, row: Row, result: RowAnswer | InflightError, attempts: int) -> None:
        done = self._format(row, result, attempts)
        if isinstance(result, Transcription):
            done = replace(done, blocks=request_key(row.request) or b"")
        tokens = add_tokens(done.tokens, row.spent)
        if row.refinement is None:
            self._session.ledger.add(replace(done, tokens=tokens) if any(row.spent) else done)
            return
        first = row.refinement.tokens
        refine_tokens = tokens[0] - first[0], tokens[1] - first[1]
        refined = not row.refinement.error and done.status is RowStatus.OK
        self._session.ledger.add(replace(done, tokens=tokens, refined=refined, refine_tokens=refine_tokens))

    def _on_copy(self, row: Row, result: RowAnswer | InflightError) -> None:
        """Finish a row with the result of an identical one, for which nothing more was computed."""
        done = self._format(row, result, 0)
        self._session.ledger.add(replace(done, tokens=(0, 0), copied=True))

    def _format(self, row: Row, result: RowAnswer | InflightError, attempts: int) -> RowResult:
        form = self._session.row_format
        if isinstance(result, InflightError):
            return form.format_failure(row, result, attempts)
        try:
            return form.format_answer(row, result, attempts)
        except (ValueError, TypeError, KeyError):  # halves of characters, numbers beyond JSON's, calls that are none
            error = InflightError("the answer can't be written as JSON; send the row again", "answer_damaged")
            return replace(form.format_failure(row, error, attempts), tokens=answer_tokens(result))

    async def _report_and_poll_cancel(self) -> None:
        """Report progress, and check for a request to cancel."""
        last_report = time.monotonic()
        while True:
            servers = self._sender.servers()
            if any(server.up for server in servers):
                last_report = time.monotonic()
            state = JobState.WAITING if time.monotonic() - last_report > _WAITING_AFTER_SECONDS else JobState.RUNNING
            if self._draining is not None:
                state = JobState.DRAINING  # the final state is reported at the end
            expected = "" if self._pace is None else self._pace.expected
            progress = self._reporter.report(state, self.message, self._sender.pending_retries, servers, expected)
            if self._pace is not None:
                self._adjust_pace(self._pace, progress.throughput.eta)
            if self._session.directory.cancel.exists():
                self._stop(JobState.CANCELLED, CANCELLED, 0.0)
            await asyncio.sleep(_REPORT_SECONDS)

    def _adjust_pace(self, pace: Pace, eta: float | None) -> None:
        assert self._options.finish_by is not None
        if pace.update(time.monotonic(), seconds_until(self._options.finish_by, time.time()), eta):
            self._sender.set_pace(pace.priority, pace.share)

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
            self._sender.stop()
            self._drain(seconds)

    def _drain(self, seconds: float) -> None:
        if self._draining is not None:
            self._draining.cancel()
        self._draining = asyncio.get_running_loop().create_task(self._sender.drain(seconds))


def _from_thread(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *values: object) -> None:
    loop.call_soon_threadsafe(call, *values)
