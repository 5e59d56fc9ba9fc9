"""Runs a job's parts on workers of Ray, and makes one output of them."""

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

from inflight.batch.counts import Counts
from inflight.batch.ending import finish
from inflight.batch.errors import BatchError
from inflight.batch.job import Job, Part
from inflight.batch.job_directory import JobDirectory
from inflight.batch.opening import OpenJob
from inflight.batch.ray_runner.agreement import agree
from inflight.batch.ray_runner.cluster import cluster
from inflight.batch.ray_runner.merge import Merge
from inflight.batch.ray_runner.parts import Mark, Parts, cut
from inflight.batch.ray_runner.together import Together
from inflight.batch.ray_runner.worker import DRAIN, NOW, Report, Task, Worker
from inflight.batch.runner import MAY_PASS, End, Runner
from inflight.batch.seen.progress import Progress, State, read_progress
from inflight.batch.signals import CANCELLED, INTERRUPTED, StopEarlyError
from inflight.batch.state.retrial import Retrial

_LOOK_SECONDS = 1.0
_NOW_SECONDS = 15.0
"""For workers to see an order, and to make what they have done last."""


class RayRunner(Runner):
    """The head. It asks no row itself: it cuts the input, hands its parts to workers, and merges what they write.

    Each part is a job with a state of its own in the job's directory, which all machines must see at the same path; so
    whatever dies, the next life goes on where every part stands. Rows that are asked once more are few, and asked here.
    """

    def __init__(
        self,
        job: Job,
        directory: JobDirectory,
        show: Callable[[Progress], None] = lambda progress: None,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        super().__init__(job, directory, show, say)
        self._parts = Parts(directory)
        self._together: Together | None = None
        self._reports: list[Report] = []
        self._failure: BaseException | None = None
        self._ending: tuple[State, str] | None = None
        self._until = math.inf

    def _live(self, job: OpenJob) -> End:
        if isinstance(job.ledger, Retrial):
            return super()._live(job)
        self._parts.order.unlink(missing_ok=True)
        job.ledger.counts.lives += 1
        try:
            end = self._ask_all(job)
        except StopEarlyError:
            end = End(State.STOPPED, job.ledger.counts, INTERRUPTED)
        except BatchError as error:
            state = State.STOPPED if error.code in MAY_PASS else State.FAILED
            end = End(state, job.ledger.counts, str(error), error.code)
        if self._together is None:
            return end
        return replace(end, counts=self._together.tell(end.state, end.sentence))

    def _ask_all(self, job: OpenJob) -> End:
        plan = self._plan(job)
        jobs = [self._parts.job(self._job, index, part) for index, part in enumerate(plan)]
        directories = [JobDirectory.of(one.output) for one in jobs]
        together = self._together = Together(job, _rows(plan), directories, self._show)
        if jobs and not job.all_done:
            self._run_parts(job, jobs, together)
            if (end := self._early_end()) is not None:
                return end
        if not job.all_done:
            with self._signals.telling(lambda count: None):
                Merge(job, plan, directories, lambda: self._kept(together)).run()
        end = End(State.FINISHED, job.ledger.counts, written=tuple(finish(job)))
        shutil.rmtree(self._parts.path, ignore_errors=True)  # nothing is there that the job's own files have not
        return end

    def _plan(self, job: OpenJob) -> tuple[Part, ...]:
        """The job's parts: those of an earlier life, or new ones of what is left of the input."""
        plan = self._parts.read()
        if plan is None:
            self._say("Reading the input once, to cut it into parts.")
            ledger = job.ledger
            plan = cut(job.source, Mark(*ledger.start), self._job.input.limit, self._workers)
            ledger.remember("before_parts", ledger.counts.values())
            self._parts.write(plan)
        return plan

    @property
    def _workers(self) -> int:
        running = self._job.running
        return running.workers or (1 if running.ephemeral else len(running.servers))

    def _run_parts(self, job: OpenJob, jobs: Sequence[Job], together: Together) -> None:
        """Until all parts have ended, or were told to."""
        created, found = int(job.ledger.recall("created")), job.source.fingerprint
        order, build, life = self._parts.order, self._parts.path / "build", uuid.uuid4().hex
        if (bound := job.ledger.recall("build")) is not None:
            job.bind_build(agree(build, bound))
        tasks = [
            Task(index, one, created, found, order, build, life) for index, one in enumerate(jobs) if not _finished(one)
        ]
        if not tasks:
            return
        with cluster(self._workers) as ray:
            workers = threading.Thread(target=self._hand_out, args=(ray, tasks), name="batch-ray", daemon=True)
            with self._signals.telling(self._signalled):
                workers.start()
                while workers.is_alive() and time.monotonic() < self._until:
                    if self._directory.cancel.exists():
                        self._stop(State.CANCELLED, CANCELLED, NOW)
                    together.tell(State.DRAINING if self._ending else State.RUNNING)
                    workers.join(_LOOK_SECONDS)
                    together.keep()
        if self._failure is not None and self._ending is None:
            raise self._failure

    def _hand_out(self, ray: Any, tasks: Sequence[Task]) -> None:
        """A thread of its own: give each part to a worker that is free. A worker that dies is replaced."""
        gpus = 1 if self._job.running.ephemeral and ray.cluster_resources().get("GPU") else 0
        pool = ray.data.ActorPoolStrategy(size=self._workers, max_tasks_in_flight_per_actor=1)
        rows = [{"task": pickle.dumps(task)} for task in tasks]
        try:
            parts = ray.data.from_items(rows, override_num_blocks=len(rows))
            for row in parts.map(Worker, compute=pool, num_cpus=1, num_gpus=gpus).iter_rows():
                report = Report(**row)
                self._reports.append(report)
                if report.state == State.FAILED:
                    self._order(DRAIN)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            self._failure = BatchError(f"Ray failed: {reason}; mend that and resume the job", "job_failed")
        except BaseException as error:  # goes to the main thread
            self._failure = error

    def _signalled(self, count: int) -> None:
        if count == 1:
            notice = self._job.running.notice
            self._say(f"Stopping: requests in flight have {notice:g} s to finish. Interrupt again to stop at once.")
            self._stop(State.STOPPED, INTERRUPTED, DRAIN)
        else:
            self._stop(State.STOPPED, INTERRUPTED, NOW)

    def _stop(self, state: State, sentence: str, order: str) -> None:
        if self._ending is None:
            self._ending = (state, sentence)
        seconds = _NOW_SECONDS if order == NOW else self._job.running.notice + _NOW_SECONDS
        self._until = min(self._until, time.monotonic() + seconds)
        self._order(order)

    def _order(self, order: str) -> None:
        self._directory.write(self._parts.order, order)

    def _early_end(self) -> End | None:
        """How it ended, unless all parts are done."""
        counts = Counts()
        if self._ending is not None:
            state, sentence = self._ending
            return End(state, counts, sentence)
        undone = [one for one in self._reports if one.state != State.FINISHED]
        for report in sorted(undone, key=lambda one: one.state != State.FAILED):
            state = State.FAILED if report.state == State.FAILED else State.STOPPED
            return End(state, counts, report.sentence, report.code)
        return None

    def _kept(self, together: Together) -> None:
        """A checkpoint of the merge, after which it may be broken off."""
        together.keep()
        if self._signals.count:
            raise StopEarlyError


def _finished(part: Job) -> bool:
    """Whether an earlier life has seen a part's end."""
    progress = read_progress(JobDirectory.of(part.output))
    return progress is not None and progress.state is State.FINISHED


def _rows(plan: Sequence[Part]) -> int:
    """The number behind the last row."""
    return plan[-1].first + (plan[-1].rows or 0) if plan else 0
