"""Runs a job: opens it, finds its servers, runs it, and finalizes it if all rows are done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Self

from inflight_client import InflightError

from inflight.batch.dispatch.backend import Backend
from inflight.batch.dispatch.connect import connect
from inflight.batch.dispatch.ephemeral_server import ephemeral_server
from inflight.batch.dispatch.prefetcher import RowPrefetcher
from inflight.batch.dispatch.retrieval import Encoders
from inflight.batch.errors import BatchError
from inflight.batch.finalize import finalize
from inflight.batch.job.counts import Counts
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import GenerateRequest
from inflight.batch.job.spec import Job
from inflight.batch.job_run import JobRun
from inflight.batch.reporting.progress import JobProgress, JobState, read_progress
from inflight.batch.reporting.progress_reporter import ProgressReporter
from inflight.batch.row_formats.detection import first_record
from inflight.batch.row_formats.factory import sample_request
from inflight.batch.session import JobSession, open_job_source, open_session
from inflight.batch.signals import INTERRUPTED, StopEarlyError, StopSignals
from inflight.batch.state.retry_ledger import RetryLedger, check_input, check_retry_codes, select_failed_rows
from inflight.batch.state.state_replicator import StateReplicator
from inflight.batch.storage.addresses import is_queue

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


TEMPORARY_CODES = (
    "disk_full", "server_unreachable", "storage_unreachable", "output_failed", "model_not_ready", "job_elsewhere"
)  # fmt: skip
"""Errors that end a run but not the job: the same command continues once they have passed."""
EX_TEMPFAIL = 75
"""EX_TEMPFAIL of sysexits.h: not done, try again."""


@dataclass(frozen=True)
class JobResult:
    """How a run of a job ended. `message` says why, unless it finished; `outputs` are the addresses of its output."""

    state: JobState
    counts: Counts
    message: str = ""
    code: str = ""
    outputs: tuple[str, ...] = ()

    @classmethod
    def from_error(cls, error: BatchError, counts: Counts) -> Self:
        """Return a stop for a temporary error, which a resume may not meet again, and a failure for all others."""
        state = JobState.STOPPED if error.code in TEMPORARY_CODES else JobState.FAILED
        return cls(state, counts, str(error), error.code)

    @property
    def exit_code(self) -> int:
        """0: all rows answered; 3: some not, or all with empty answers; 4: cancelled; 75: stopped early; 1: failed."""
        if self.state is JobState.FINISHED:
            return 3 if self.counts.error or self.counts.dead or 0 < self.counts.ok == self.counts.empty else 0
        if self.state is JobState.CANCELLED:
            return 4
        return EX_TEMPFAIL if self.state is JobState.STOPPED else 1


class JobRunner:
    """Runs a job. `on_progress` gets its progress each second, `on_message` sentences for people.

    `backends`, `encoders` and `refiners` answer in place of the servers that the job names.
    """

    def __init__(
        self,
        job: Job,
        directory: JobDirectory,
        on_progress: Callable[[JobProgress], None] = lambda progress: None,
        on_message: Callable[[str], None] = lambda sentence: None,
        backends: Sequence[Backend] | None = None,
        encoders: Encoders | None = None,
        refiners: Sequence[Backend] = (),
    ) -> None:
        self._refiners = refiners
        self._job, self._directory = job, directory
        self._on_progress, self._on_message = on_progress, on_message
        self._backends, self._encoders = backends, encoders
        self._signals = StopSignals()
        self._replicator = StateReplicator(job.output, directory, on_message)
        self._closing: InflightError | None = None

    def run(self, retry_codes: Sequence[str] | None = None) -> JobResult:
        """Run the job once. Raises BatchError if it can't begin; what is temporary or comes later is in the result.

        `retry_codes`: codes of failed rows to send again, of a job that is finished; empty for all that may succeed.
        """
        try:
            with self._signals.caught(), ExitStack() as stack:
                if not self._directory.state.exists():  # a job without input leaves no trace
                    with closing(open_job_source(self._job)) as source:
                        first_record(source)
                stack.enter_context(self._directory.locked())
                self._directory.cancel.unlink(missing_ok=True)
                stack.enter_context(self._replicator.lease())
                if retry_codes is not None:
                    self._select_retry_rows(retry_codes)
                session = stack.enter_context(open_session(self._job, self._directory))
                if session.finished:
                    return self._finished(session)
                self._on_message(f"Job directory: {self._directory.path}")
                return self._execute(session)
        except StopEarlyError:
            return JobResult(JobState.STOPPED, Counts(), f"{INTERRUPTED} before it began")
        except BatchError as error:
            if error.code not in TEMPORARY_CODES:
                raise
            return JobResult.from_error(error, Counts())

    def close(self, error: InflightError) -> JobResult:
        """End the job without its servers: each row that has no result yet gets this error. Raises as `run` does.

        A job that was killed meanwhile is closed again, also with another error.
        """
        self._closing = error
        return self.run()

    def _finished(self, session: JobSession) -> JobResult:
        """The run that finished it may have been killed before it reported that."""
        self._on_message(f"The job at {self._directory.path} is finished already.")
        before = read_progress(self._directory)
        if before is None or before.state is not JobState.FINISHED:
            ProgressReporter(session, self._job.run_options, self._on_progress).report(JobState.FINISHED)
        return JobResult(JobState.FINISHED, session.ledger.counts, outputs=tuple(session.ledger.recall("outputs", [])))

    def _select_retry_rows(self, codes: Sequence[str]) -> None:
        """Choose the rows to retry. A job that cannot be opened stays finished."""
        check_retry_codes(codes)
        if is_queue(self._job.input.address):
            raise BatchError(
                f"{self._job.input.shown} is a message queue, whose messages can't be read again; send them to the"
                " queue again",
                "invalid_parameter",
            )
        selected = None
        if self._directory.state.exists():
            with open_session(self._job, self._directory) as job:
                if job.ledger.next == job.ledger.recall("rows"):
                    check_input(job.source, self._job.input)
                    selected = select_failed_rows(job.ledger, codes)
        if selected is None:
            raise BatchError(
                f"the job at {self._directory.path} is not finished; resume it before you retry rows",
                "job_failed",
            )
        self._on_message(f"Rows to send again: {selected:,}." if selected else "There are no rows to send again.")

    def stop(self) -> None:
        """Stop from another thread, as SIGTERM does: the first call drains, the second one stops at once."""
        self._signals.request_stop()

    def _execute(self, session: JobSession) -> JobResult:
        session.ledger.counts.runs += 1
        reporter = ProgressReporter(session, self._job.run_options, self._on_progress)
        result: JobResult | None = None
        try:
            self._replicator.claim(session.ledger)
            if not session.all_done:
                if self._closing is None:
                    result = self._send_rows(session, reporter)
                else:
                    close_rows(session, self._closing)
                if result is None:  # completing the output may take long, and no row need be sent again
                    self._replicator.upload(session.ledger)
            if result is None:
                if isinstance(session.ledger, RetryLedger):
                    session.ledger.merge()
                result = JobResult(
                    JobState.FINISHED, session.ledger.counts, outputs=tuple(finalize(session, self._on_message))
                )
            self._replicator.upload(session.ledger, final=True)
        except StopEarlyError:
            when = "before the output was complete" if session.all_done else "before any row was sent"
            result = JobResult(JobState.STOPPED, session.ledger.counts, f"{INTERRUPTED} {when}")
        except BatchError as error:
            result = JobResult.from_error(error, session.ledger.counts)
        reporter.report(result.state, result.message)
        return result

    def _send_rows(self, session: JobSession, reporter: ProgressReporter) -> JobResult | None:
        """Send the rows; return why that ended early, if it did."""
        with self._servers(session) as backends:
            encoders = self._encoders
            if encoders is None and self._job.retrieval is not None:
                encoders = Encoders.of_job(self._job, self._on_message)
            refine_with = self._job.run_options.refine_with
            refiners = self._refiners or [self._connect(each, session, refines=True) for each in refine_with]
            run = JobRun(
                *(session, backends, reporter, self._replicator, self._signals, self._on_message, encoders, refiners)
            )
            asyncio.run(run.run())
        return None if session.all_done else JobResult(run.state, session.ledger.counts, run.message)

    @contextmanager
    def _servers(self, session: JobSession) -> Iterator[Sequence[Backend]]:
        running = self._job.run_options
        if self._backends is not None:
            yield self._backends
            return
        own_server = nullcontext() if running.ephemeral is None else ephemeral_server(running, self._on_message)
        with own_server as address:
            addresses = running.servers if address is None else (address,)
            yield [self._connect(each, session) for each in addresses]

    def _connect(self, address: str, session: JobSession, refines: bool = False) -> Backend:
        options, sample = self._job.run_options, sample_request(self._job)
        if refines:  # --model is the first model's, and the condition reads the first answer's scores
            options = options.model_copy(update={"model": None})
            sample = replace(sample, wants_scores=False) if isinstance(sample, GenerateRequest) else sample
        return connect(address, options, self._on_message, self._job.task, [sample], session.ledger)
