"""What a worker of Ray does: it lives the jobs of parts, one after the other, with a server of its own if asked for."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from inflight.batch.backend import Backend
from inflight.batch.errors import BatchError
from inflight.batch.flow.ephemeral import ephemeral_server
from inflight.batch.job import Job
from inflight.batch.job_directory import JobDirectory
from inflight.batch.opening import OpenJob
from inflight.batch.ray_runner.agreement import agree
from inflight.batch.runner import End, Runner
from inflight.batch.seen.progress import State
from inflight.batch.state.ledger import Ledger

DRAIN, NOW = "drain", "now"
"""What the file that tells workers to stop says."""
_LOOK_SECONDS = 0.25
MOST_TRIES = 5
"""Lives of a part in which no row of it is done, until it is given up."""
_HELD_SECONDS = 60.0
"""How long the process of a dead head, or of a dead worker's first try, may take to be gone."""


@dataclass(frozen=True)
class Task:
    """A part of the input as workers get it. `created` and `fingerprint`: the whole job's. `life`: of the head."""

    index: int
    job: Job
    created: int
    fingerprint: str
    order: Path
    build: Path
    life: str


@dataclass(frozen=True)
class Report:
    """How a life of a part ended."""

    index: int
    state: str
    sentence: str = ""
    code: str = ""


@dataclass(frozen=True)
class _PartJob(OpenJob):
    """Bound to the build of all parts, so that another model is found before a row of it is asked."""

    build: Path = Path()

    def bind_build(self, build: str) -> None:
        super().bind_build(agree(self.build, build))
        super().bind_build(build)


class PartRunner(Runner):
    """Lives the job of a part. `build`: the file with the build of all parts."""

    def __init__(
        self, job: Job, directory: JobDirectory, build: Path, backends: Sequence[Backend] | None = None
    ) -> None:
        super().__init__(job, directory, backends=backends)
        self._build = build

    def _live(self, job: OpenJob) -> End:
        known = {field.name: getattr(job, field.name) for field in fields(job)}
        return super()._live(_PartJob(**known, build=self._build))


class Worker:
    """Ray makes one in each of its processes, and anew where one died: then the part goes on where its state is."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._server: str | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        task: Task = pickle.loads(row["task"])
        try:
            return asdict(self._live(task))
        except BatchError as error:
            return asdict(Report(task.index, State.FAILED, str(error), error.code))
        except Exception as error:  # of which Ray would tell anything but what and where
            sentence = f"the part at {JobDirectory.of(task.job.output).path} failed: {error!r}; resume the job"
            return asdict(Report(task.index, State.FAILED, sentence, "job_failed"))

    def _live(self, task: Task) -> Report:
        if task.order.exists():
            return Report(task.index, State.STOPPED)
        directory = JobDirectory.of(task.job.output)
        _begin(directory, task)
        runner = PartRunner(self._served(task.job), directory, task.build)
        ended: list[Report] = []
        failure: list[BaseException] = []

        def live() -> None:
            try:
                end = runner.run()
                ended.append(Report(task.index, end.state, end.sentence, end.code))
            except BaseException as error:  # goes to the worker's own thread
                failure.append(error)

        thread = threading.Thread(target=live, name=f"part-{task.index}")
        thread.start()
        _watch(thread, runner, task.order)
        if failure:
            raise failure[0]
        return ended[0]

    def _served(self, job: Job) -> Job:
        """The job, asking this worker's own server, if it is to have one: started once, and gone with the worker."""
        if job.running.ephemeral is None:
            return job
        if self._server is None:
            self._server = self._stack.enter_context(ephemeral_server(job.running, lambda line: None))
        running = job.running.model_copy(update={"servers": (self._server,), "ephemeral": None})
        return job.model_copy(update={"running": running})


def _watch(thread: threading.Thread, runner: Runner, order: Path) -> None:
    """Until it has ended; hands on what the head's file orders."""
    told = 0
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
        wanted = _orders(order)
        while told < wanted:
            runner.stop()
            told += 1


def _orders(order: Path) -> int:
    try:
        return 2 if order.read_text() == NOW else 1
    except OSError:
        return 0


def _begin(directory: JobDirectory, task: Task) -> None:
    """Give a part's state what all parts have from the whole job. Raises BatchError where workers only die of it."""
    until = time.monotonic() + _HELD_SECONDS
    while directory.running:
        if time.monotonic() > until:
            raise BatchError(f"another process runs the part at {directory.path}", "job_running")
        time.sleep(_LOOK_SECONDS)
    with directory.locked():
        ledger = Ledger(directory, task.job.input.part.first)
        try:
            for name, value in (("created", task.created), ("input", task.fingerprint)):
                if ledger.recall(name) is None:
                    ledger.remember(name, value)
            _count(ledger, task, directory)
        finally:
            ledger.close()


def _count(ledger: Ledger, task: Task, directory: JobDirectory) -> None:
    """Ray gives a part to another worker for ever. One under which they die with no row done is given up."""
    stand = [task.life, ledger.counts.done]
    before, times = ledger.recall("tried", (stand, 0))
    if before != stand:
        times = 0
    if times >= MOST_TRIES:
        raise BatchError(
            f"{times} workers died over the part at {directory.path}, and no row of it was done; Ray's log on their"
            " machines says why (often memory); mend that and resume the job",
            "job_failed",
        )
    ledger.remember("tried", (stand, times + 1))
