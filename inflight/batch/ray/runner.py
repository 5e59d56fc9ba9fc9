"""Runs the parts of a job on Ray workers, and merges them into one output."""

from __future__ import annotations

import math
import pickle
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from inflight.batch.errors import BatchError
from inflight.batch.finalize import finalize
from inflight.batch.job.counts import Counts
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import InputPart, Job
from inflight.batch.ray.aggregate_status import AggregateStatus
from inflight.batch.ray.cluster import cluster
from inflight.batch.ray.merge import PartMerger
from inflight.batch.ray.parts import PartPlan, StartPoint, split_input
from inflight.batch.ray.shared_facts import RETRIEVAL_TASKS, set_once
from inflight.batch.ray.worker import DRAIN, NOW, PartReport, PartTask, PartWorker
from inflight.batch.reporting.progress import JobProgress, JobState, read_progress
from inflight.batch.runner import JobResult, JobRunner
from inflight.batch.session import JobSession
from inflight.batch.signals import CANCELLED, INTERRUPTED, StopEarlyError, stopping_message
from inflight.batch.state.retry_ledger import RetryLedger

_LOOK_SECONDS = 1.0
_NOW_SECONDS = 15.0
"""Seconds for workers to see a stop order and save their results."""


class RayRunner(JobRunner):
    """The head. It sends no rows itself: it splits the input, assigns parts to workers, and merges their results.

    Each part is a job with its own state in the job's directory, which all machines must see at the same path. So
    whatever dies, the next run continues where every part was. Retried rows are few, and are sent from here.
    """

    def __init__(
        self,
        job: Job,
        directory: JobDirectory,
        on_progress: Callable[[JobProgress], None] = lambda progress: None,
        on_message: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        super().__init__(job, directory, on_progress, on_message)
        self._parts = PartPlan(directory)
        self._aggregate: AggregateStatus | None = None
        self._reports: list[PartReport] = []
        self._failure: BaseException | None = None
        self._early_state: tuple[JobState, str] | None = None
        self._until = math.inf

    def _execute(self, session: JobSession) -> JobResult:
        if isinstance(session.ledger, RetryLedger):
            return super()._execute(session)
        self._parts.shared.stop.unlink(missing_ok=True)
        session.ledger.counts.runs += 1
        try:
            end = self._execute_parts(session)
        except StopEarlyError:
            end = JobResult(JobState.STOPPED, session.ledger.counts, INTERRUPTED)
        except BatchError as error:
            end = JobResult.from_error(error, session.ledger.counts)
        if self._aggregate is None:
            return end
        return replace(end, counts=self._aggregate.report(end.state, end.message))

    def _execute_parts(self, session: JobSession) -> JobResult:
        plan = self._plan(session)
        jobs = [self._parts.job(self._job, index, part) for index, part in enumerate(plan)]
        directories = [JobDirectory.from_output(part.output) for part in jobs]
        together = self._aggregate = AggregateStatus(
            session, plan[-1].first + (plan[-1].rows or 0) if plan else 0, directories, self._on_progress
        )
        if jobs and not session.all_done:
            self._run_parts(session, jobs, together)
            if (end := self._early_end()) is not None:
                return end
        if not session.all_done:
            with self._signals.handled_by(lambda count: None):
                PartMerger(session, plan, directories, lambda: self._checkpoint_merge(together)).run()
        end = JobResult(JobState.FINISHED, session.ledger.counts, outputs=tuple(finalize(session, self._on_message)))
        shutil.rmtree(self._parts.path, ignore_errors=True)  # all of it is in the job's own files
        return end

    def _plan(self, session: JobSession) -> tuple[InputPart, ...]:
        """Return the job's parts: those of an earlier run, or new ones for the rest of the input."""
        plan = self._parts.read()
        if plan is None:
            self._on_message("Reading the input once to split it into parts.")
            ledger = session.ledger
            plan = split_input(session.source, StartPoint(*ledger.start), self._job.input.limit, self._workers)
            ledger.remember("counts_before_parts", ledger.counts.as_dict())
            self._parts.write(plan)
        return plan

    @property
    def _workers(self) -> int:
        running = self._job.run_options
        return running.workers or (1 if running.ephemeral else len(running.servers))

    def _run_parts(self, session: JobSession, jobs: Sequence[Job], aggregate: AggregateStatus) -> None:
        """Wait until all parts have ended or were stopped."""
        created, fingerprint = int(session.ledger.recall("created")), session.source.fingerprint
        shared, run_id = self._parts.shared, uuid.uuid4().hex
        if (bound := session.ledger.recall("build")) is not None:
            session.bind_build(set_once(shared.build, bound))
        for task in RETRIEVAL_TASKS:
            if (bound := session.ledger.recall(f"{task}_build")) is not None:
                session.bind_encoder(task, set_once(shared.encoder(task), bound))
        shared.dimensions_checked.unlink(missing_ok=True)
        tasks = [
            PartTask(index, part, created, fingerprint, shared, run_id)
            for index, part in enumerate(jobs)
            if not _finished(part)
        ]
        if not tasks:
            return
        with cluster(self._workers) as ray:
            workers = threading.Thread(target=self._dispatch_parts, args=(ray, tasks), name="batch-ray", daemon=True)
            with self._signals.handled_by(self._on_signal):
                workers.start()
                while workers.is_alive() and time.monotonic() < self._until:
                    if self._directory.cancel.exists():
                        self._stop(JobState.CANCELLED, CANCELLED, NOW)
                    self._check_dimensions(session)
                    aggregate.report(JobState.DRAINING if self._early_state else JobState.RUNNING)
                    workers.join(_LOOK_SECONDS)
                    aggregate.checkpoint()
        if self._failure is not None and self._early_state is None:
            raise self._failure

    def _check_dimensions(self, session: JobSession) -> None:
        """Check the size of the vectors, for which the parts wait before they send rows; stop them if it is wrong."""
        shared = self._parts.shared
        if shared.stop.exists() or shared.dimensions_checked.exists() or not shared.dimensions.exists():
            return
        try:
            session.bind_dimensions(int(shared.dimensions.read_text()))
            self._directory.write(shared.dimensions_checked, "")
        except BatchError as error:
            self._failure = error
            self._directory.write(self._parts.shared.stop, DRAIN)

    def _dispatch_parts(self, ray: Any, tasks: Sequence[PartTask]) -> None:
        """Assign each part to a free worker, in a separate thread. A worker that dies is replaced."""
        gpus = 1 if self._job.run_options.ephemeral and ray.cluster_resources().get("GPU") else 0
        pool = ray.data.ActorPoolStrategy(size=self._workers, max_tasks_in_flight_per_actor=1)
        rows = [{"task": pickle.dumps(task)} for task in tasks]
        try:
            parts = ray.data.from_items(rows, override_num_blocks=len(rows))
            for row in parts.map(PartWorker, compute=pool, num_cpus=1, num_gpus=gpus).iter_rows():
                report = PartReport(**row)
                self._reports.append(report)
                if report.state == JobState.FAILED:
                    self._directory.write(self._parts.shared.stop, DRAIN)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            self._failure = BatchError(f"Ray failed: {reason}; fix that and resume the job", "job_failed")
        except BaseException as error:  # passed to the main thread
            self._failure = error

    def _on_signal(self, count: int) -> None:
        if count == 1:
            self._on_message(stopping_message(self._job.run_options.drain_seconds))
            self._stop(JobState.STOPPED, INTERRUPTED, DRAIN)
        else:
            self._stop(JobState.STOPPED, INTERRUPTED, NOW)

    def _stop(self, state: JobState, message: str, order: str) -> None:
        if self._early_state is None:
            self._early_state = (state, message)
        seconds = _NOW_SECONDS if order == NOW else self._job.run_options.drain_seconds + _NOW_SECONDS
        self._until = min(self._until, time.monotonic() + seconds)
        self._directory.write(self._parts.shared.stop, order)

    def _early_end(self) -> JobResult | None:
        """Return how the job ended, unless all parts are done."""
        if self._early_state is not None:
            state, sentence = self._early_state
            return JobResult(state, Counts(), sentence)
        undone = [report for report in self._reports if report.state != JobState.FINISHED]
        if not undone:
            return None
        report = min(undone, key=lambda report: report.state != JobState.FAILED)
        state = JobState.FAILED if report.state == JobState.FAILED else JobState.STOPPED
        return JobResult(state, Counts(), report.message, report.code)

    def _checkpoint_merge(self, aggregate: AggregateStatus) -> None:
        """Commit a checkpoint of the merge, then stop if that was requested."""
        aggregate.checkpoint()
        if self._signals.count:
            raise StopEarlyError


def _finished(part: Job) -> bool:
    """Return whether an earlier run has finished the part."""
    progress = read_progress(JobDirectory.from_output(part.output))
    return progress is not None and progress.state is JobState.FINISHED
