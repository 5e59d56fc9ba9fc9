"""What a worker of Ray does: it lives the jobs of parts, one after the other, with a server of its own if asked for."""

from __future__ import annotations

import pickle
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inflight.batch.errors import BatchError
from inflight.batch.flow.ephemeral import ephemeral_server
from inflight.batch.job import Job
from inflight.batch.job_directory import JobDirectory
from inflight.batch.runner import Runner
from inflight.batch.seen.progress import State
from inflight.batch.state.ledger import Ledger

DRAIN, NOW = "drain", "now"
"""What the file that tells workers to stop says."""
_LOOK_SECONDS = 0.25
_HELD_SECONDS = 60.0
"""How long the process of a dead head, or of a dead worker's first try, may take to be gone."""


@dataclass(frozen=True)
class Task:
    """A part of the input as workers get it. `created` and `fingerprint`: the whole job's."""

    index: int
    job: Job
    created: int
    fingerprint: str
    order: Path


@dataclass(frozen=True)
class Report:
    """How a life of a part ended."""

    index: int
    state: str
    sentence: str = ""
    code: str = ""


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

    def _live(self, task: Task) -> Report:
        if task.order.exists():
            return Report(task.index, State.STOPPED)
        directory = JobDirectory.of(task.job.output)
        _begin(directory, task)
        runner = Runner(self._served(task.job), directory)
        ended: list[Report] = []
        failure: list[BatchError] = []

        def live() -> None:
            try:
                end = runner.run()
                ended.append(Report(task.index, end.state, end.sentence, end.code))
            except BatchError as error:
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
    """Give a part's state what all parts have from the whole job."""
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
        finally:
            ledger.close()
