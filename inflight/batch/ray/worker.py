"""A Ray worker: runs the jobs of parts, one after the other, with its own temporary server if requested."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from inflight.batch.dispatch.backend import Backend
from inflight.batch.dispatch.ephemeral_server import ephemeral_server
from inflight.batch.dispatch.retrieval import Encoders
from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import Job, Task
from inflight.batch.ray.shared_facts import SharedFacts, set_once
from inflight.batch.reporting.progress import JobState
from inflight.batch.runner import JobResult, JobRunner
from inflight.batch.session import JobSession
from inflight.batch.signals import StopEarlyError
from inflight.batch.state.ledger import Ledger

DRAIN, NOW = "drain", "now"
"""Content of the file that tells workers to stop."""
_LOOK_SECONDS = 0.25
MAX_ATTEMPTS = 5
"""Attempts of a part without any finished row after which it is given up."""
_LOCK_TIMEOUT = 60.0
"""Seconds to wait until the process of a dead head, or of a dead worker's first attempt, is gone."""


@dataclass(frozen=True)
class PartTask:
    """A part of the input for a worker. `created` and `fingerprint` are the whole job's; `run_id` is the head's."""

    index: int
    job: Job
    created: int
    fingerprint: str
    shared: SharedFacts
    run_id: str


@dataclass(frozen=True)
class PartReport:
    """The result of a run of a part."""

    index: int
    state: str
    message: str = ""
    code: str = ""


@dataclass(frozen=True)
class _PartSession(JobSession):
    """A session bound to the builds and the dimensions of all parts, so that another model is detected before any row
    is sent."""

    shared: SharedFacts = field(kw_only=True)

    def bind_build(self, build: str) -> None:
        super().bind_build(set_once(self.shared.build, build))
        super().bind_build(build)

    def bind_refine_build(self, build: str) -> None:
        super().bind_refine_build(set_once(self.shared.refine_build, build))
        super().bind_refine_build(build)

    def bind_encoder(self, task: Task, build: str) -> None:
        super().bind_encoder(task, set_once(self.shared.encoder(task), build))
        super().bind_encoder(task, build)

    def bind_dimensions(self, dimensions: int) -> None:
        """Wait also for the head, which checks that the vectors fit the whole job's output."""
        super().bind_dimensions(int(set_once(self.shared.dimensions, str(dimensions))))
        super().bind_dimensions(dimensions)
        while not self.shared.dimensions_checked.exists():
            if self.shared.stop.exists():
                raise StopEarlyError
            time.sleep(_LOOK_SECONDS)


class PartRunner(JobRunner):
    """Runs the job of a part."""

    def __init__(
        self,
        job: Job,
        directory: JobDirectory,
        shared: SharedFacts,
        backends: Sequence[Backend] | None = None,
        encoders: Encoders | None = None,
    ) -> None:
        super().__init__(job, directory, backends=backends, encoders=encoders)
        self._shared = shared

    def _execute(self, session: JobSession) -> JobResult:
        values = {field_.name: getattr(session, field_.name) for field_ in fields(session)}
        return super()._execute(_PartSession(**values, shared=self._shared))


class PartWorker:
    """A worker process. Ray replaces it if it dies; the part then continues from its state."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._server: str | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        task: PartTask = pickle.loads(row["task"])
        try:
            return asdict(self._run_part(task))
        except BatchError as error:
            return asdict(PartReport(task.index, JobState.FAILED, str(error), error.code))
        except Exception as error:  # Ray would report only its type and location
            sentence = f"the part at {JobDirectory.from_output(task.job.output).path} failed: {error!r}; resume the job"
            return asdict(PartReport(task.index, JobState.FAILED, sentence, "job_failed"))

    def _run_part(self, task: PartTask) -> PartReport:
        if task.shared.stop.exists():
            return PartReport(task.index, JobState.STOPPED)
        directory = JobDirectory.from_output(task.job.output)
        _begin(directory, task)
        runner = PartRunner(self._with_server(task.job), directory, task.shared)
        ended: list[PartReport] = []
        failure: list[BaseException] = []

        def live() -> None:
            try:
                end = runner.run()
                ended.append(PartReport(task.index, end.state, end.message, end.code))
            except BaseException as error:  # passed to the worker's own thread
                failure.append(error)

        thread = threading.Thread(target=live, name=f"part-{task.index}")
        thread.start()
        _watch(thread, runner, task.shared.stop)
        if failure:
            raise failure[0]
        return ended[0]

    def _with_server(self, job: Job) -> Job:
        """Return the job with this worker's own server if it has one: started once, and stopped with the worker."""
        if job.run_options.ephemeral is None:
            return job
        if self._server is None:
            self._server = self._stack.enter_context(ephemeral_server(job.run_options, lambda line: None))
        running = job.run_options.model_copy(update={"servers": (self._server,), "ephemeral": None})
        return job.model_copy(update={"run_options": running})


def _watch(thread: threading.Thread, runner: JobRunner, order: Path) -> None:
    """Wait until the thread has ended, and pass on stop orders from the head's file."""
    stop_count = 0
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
        requests = _stop_requests(order)
        while stop_count < requests:
            runner.stop()
            stop_count += 1


def _stop_requests(order: Path) -> int:
    try:
        return 2 if order.read_text() == NOW else 1
    except OSError:
        return 0


def _begin(directory: JobDirectory, task: PartTask) -> None:
    """Set a part's state from the whole job. Raises BatchError if workers keep dying from it."""
    until = time.monotonic() + _LOCK_TIMEOUT
    while directory.is_running:
        if time.monotonic() > until:
            raise BatchError(f"another process is running the part at {directory.path}", "job_running")
        time.sleep(_LOOK_SECONDS)
    with directory.locked():
        ledger = Ledger(directory, task.job.input.part.first)
        try:
            for name, value in (("created", task.created), ("input", task.fingerprint)):
                if ledger.recall(name) is None:
                    ledger.remember(name, value)
            _count_attempt(ledger, task, directory)
        finally:
            ledger.close()


def _count_attempt(ledger: Ledger, task: PartTask, directory: JobDirectory) -> None:
    """Count an attempt. Ray retries a part forever, so one whose workers die without a finished row is given up."""
    stand = [task.run_id, ledger.counts.done]
    before, times = ledger.recall("part_attempts", (stand, 0))
    if before != stand:
        times = 0
    if times >= MAX_ATTEMPTS:
        raise BatchError(
            f"{times} workers died while running the part at {directory.path}, and none of its rows was done; see "
            f"Ray's log on their machines for the cause (often memory), fix it and resume the job",
            "job_failed",
        )
    ledger.remember("part_attempts", (stand, times + 1))
