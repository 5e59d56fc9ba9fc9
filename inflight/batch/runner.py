"""Runs a job: opens it, finds its servers, lives one life of it, and finishes it where that life came to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from inflight.batch.backend import Backend
from inflight.batch.carrying import Carrying
from inflight.batch.counts import Counts
from inflight.batch.ending import finish
from inflight.batch.errors import BatchError
from inflight.batch.flow.ephemeral import ephemeral_server
from inflight.batch.flow.triton import TritonBackend
from inflight.batch.job import Job
from inflight.batch.job_directory import JobDirectory
from inflight.batch.life import Life
from inflight.batch.opening import OpenJob, opened
from inflight.batch.seen.progress import Progress, State, read_progress
from inflight.batch.signals import INTERRUPTED, Signals, StopEarlyError
from inflight.batch.sources.open import first_record, open_source
from inflight.batch.state.retrial import Retrial, check_input, check_retry, choose
from inflight.batch.telling import Telling

MAY_PASS = (
    "disk_full", "server_unreachable", "storage_unreachable", "output_failed", "model_not_ready", "job_elsewhere"
)  # fmt: skip
"""What ends a life and not the job: the same command goes on once it has passed."""
UNFINISHED = 75
"""EX_TEMPFAIL of sysexits.h: not done, and to be tried again."""


@dataclass(frozen=True)
class End:
    """How a life of a job ended; `sentence` says why, unless it finished. `written`: the addresses of its output."""

    state: State
    counts: Counts
    sentence: str = ""
    code: str = ""
    written: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 all rows answered, 3 some not; 4 cancelled; 75 stopped before the end; 1 failed."""
        if self.state is State.FINISHED:
            return 3 if self.counts.error or self.counts.dead else 0
        if self.state is State.CANCELLED:
            return 4
        return UNFINISHED if self.state is State.STOPPED else 1


class Runner:
    """`show` is given how the job stands each second; `say` sentences for people.

    `backends`: who answers instead of the servers that the job names.
    """

    def __init__(
        self,
        job: Job,
        directory: JobDirectory,
        show: Callable[[Progress], None] = lambda progress: None,
        say: Callable[[str], None] = lambda sentence: None,
        backends: Sequence[Backend] | None = None,
    ) -> None:
        self._job, self._directory = job, directory
        self._show, self._say = show, say
        self._backends = backends
        self._signals = Signals()
        self._carrying = Carrying(job.output, directory, say)

    def run(self, again: Sequence[str] | None = None) -> End:
        """Live one life of the job. Raises BatchError where it can't begin; what may pass or comes later is in the End.

        `again`: codes of failed rows to be asked once more (none: all that may do better) of a job that is at its end.
        """
        try:
            return self._open(again)
        except StopEarlyError:
            return End(State.STOPPED, Counts(), f"{INTERRUPTED} before it began")
        except BatchError as error:
            if error.code not in MAY_PASS:
                raise
            return End(State.STOPPED, Counts(), str(error), error.code)

    def _open(self, again: Sequence[str] | None) -> End:
        with self._signals.caught():
            if not self._directory.state.exists():
                first_record(open_source(self._job.input))  # what has no input leaves no trace
            with self._directory.locked():
                return self._hold(again)

    def _hold(self, again: Sequence[str] | None) -> End:
        self._directory.cancel.unlink(missing_ok=True)
        with self._carrying.held():
            if again is not None:
                self._choose(again)
            with opened(self._job, self._directory) as job:
                if job.finished:
                    return self._finished(job)
                self._say(f"Job directory: {self._directory.path}")
                return self._live(job)

    def _finished(self, job: OpenJob) -> End:
        """A death may have come before this was told."""
        self._say(f"The job at {self._directory.path} is finished already.")
        before = read_progress(self._directory)
        if before is None or before.state is not State.FINISHED:
            Telling(job, self._job.running, self._show).end(State.FINISHED, "")
        return End(State.FINISHED, job.ledger.counts, written=tuple(job.ledger.recall("written", [])))

    def _choose(self, codes: Sequence[str]) -> None:
        """A job that can't be opened as it was begun stays finished."""
        check_retry(codes)
        found = None
        if self._directory.state.exists():
            with opened(self._job, self._directory) as job:
                if job.ledger.next == job.ledger.recall("rows"):
                    check_input(job.source, self._job.input)
                    found = choose(job.ledger, codes)
        if found is None:
            raise BatchError(
                f"the job at {self._directory.path} is not at its end; resume it before rows are asked once more",
                "job_failed",
            )
        self._say(f"{found:,} rows are asked once more." if found else "There are no rows to ask once more.")

    def stop(self) -> None:
        """From another thread, what SIGTERM does: the first call asks to drain, the second to stop at once."""
        self._signals.ask()

    def _live(self, job: OpenJob) -> End:
        job.ledger.counts.lives += 1
        telling = Telling(job, self._job.running, self._show)
        try:
            self._carrying.begin(job.ledger)
            end = self._ask(job, telling)
            self._carrying.end(job.ledger)
        except StopEarlyError:
            end = End(State.STOPPED, job.ledger.counts, f"{INTERRUPTED} before any row was sent")
        except BatchError as error:
            state = State.STOPPED if error.code in MAY_PASS else State.FAILED
            end = End(state, job.ledger.counts, str(error), error.code)
        telling.end(end.state, end.sentence)
        return end

    def _ask(self, job: OpenJob, telling: Telling) -> End:
        if not job.all_done:
            with self._servers() as backends:
                life = Life(job, backends, telling, self._carrying, self._signals, self._say)
                asyncio.run(life.run())
            if not job.all_done:
                return End(life.state, job.ledger.counts, life.sentence)
            self._carrying.keep(job.ledger)
        if isinstance(job.ledger, Retrial):
            job.ledger.merge()
        return End(State.FINISHED, job.ledger.counts, written=tuple(finish(job)))

    @contextmanager
    def _servers(self) -> Iterator[Sequence[Backend]]:
        running = self._job.running
        if self._backends is not None:
            yield self._backends
        elif running.ephemeral is not None:
            with ephemeral_server(running, self._say) as address:
                yield [TritonBackend(address, running, self._say)]
        else:
            yield [TritonBackend(address, running, self._say) for address in running.servers]
