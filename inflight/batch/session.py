"""An open job: new, or resumed and checked to be the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import FACTS, Job, Task
from inflight.batch.outputs.factory import create_output
from inflight.batch.outputs.file import output_exists_error
from inflight.batch.outputs.interface import OutputWriter
from inflight.batch.queues.factory import open_queue
from inflight.batch.queues.source import MessageQueue
from inflight.batch.row_formats.detection import first_record
from inflight.batch.row_formats.factory import create_row_format
from inflight.batch.row_formats.interface import RowFormat
from inflight.batch.row_formats.template import wanted_columns
from inflight.batch.sources.factory import open_source
from inflight.batch.sources.interface import RowSource
from inflight.batch.state.ledger import Ledger
from inflight.batch.state.queue_ledger import QueueLedger
from inflight.batch.state.retry_ledger import RetryLedger, open_ledger
from inflight.batch.storage.addresses import is_on_local_disk, is_queue


@dataclass(frozen=True)
class JobSession:
    """Everything that a run of a job works with."""

    job: Job
    directory: JobDirectory
    source: RowSource
    row_format: RowFormat
    ledger: Ledger
    output: OutputWriter | None
    started_at: float = field(default_factory=time.monotonic)
    """When this run started; its cost counts from here, including the start of its server."""

    def bind_build(self, build: str) -> None:
        """Check that the model is the one that answered before. Raises BatchError `job_mismatch`."""
        self._bind_known("build", build, "was started with another build of the model")

    def bind_refine_build(self, build: str) -> None:
        """Check that the model of --refine-with is the one as before. Raises BatchError `job_mismatch`."""
        self._bind_known("refine_build", build, "was started with another model for --refine-with")

    def bind_dimensions(self, dimensions: int) -> None:
        """Check that vectors of this size are the job's. Raises BatchError `job_mismatch`, and `output_invalid` if they
        do not fit the output."""
        if self.output is not None:
            self.output.check_dimensions(dimensions)
        self._bind("dimensions", dimensions, "was started with vectors of another size")

    def bind_encoder(self, task: Task, build: str) -> None:
        """Check that an encoder of its retrieval is the one as before. Raises BatchError `job_mismatch`."""
        self._bind(f"{task}_build", build, f"was started with another encoder for {task}")

    def _bind_directory(self) -> None:
        """Refuse a job that was moved while its output is on this disk: it would write to what is there now."""
        if not is_on_local_disk(self.job.output.address):
            return
        place = str(self.directory.path.resolve())
        original = self.ledger.recall("place", place)
        if original != place:
            raise BatchError(
                f"the job at {self.directory.path} was started at {original}, where its output still is; move it back "
                "to its output, or start a new job",
                "job_mismatch",
            )
        self.ledger.remember("place", place)

    def normalize_id(self, id_: str) -> str:
        """Return the id that a row claims, as the output distinguishes ids."""
        return id_ if self.output is None else self.output.normalize_id(id_)

    @property
    def finished(self) -> bool:
        """Whether every row is done and the output is complete."""
        return bool(self.ledger.recall("finished", default=False))

    @property
    def all_done(self) -> bool:
        """Whether every row is done."""
        if isinstance(self.ledger, RetryLedger):
            return not self.ledger.remaining
        return bool(self.ledger.next == self.ledger.recall("rows"))

    @property
    def total(self) -> int | None:
        """The number of rows of the job, if known."""
        part = self.job.input.part
        rows = self.ledger.recall("rows")
        if rows is not None:
            return int(rows) - part.first
        limits = [number for number in (self.source.total, self.job.input.limit, part.rows) if number is not None]
        return min(limits) if self.source.total is not None or part.rows is not None else None

    def _bind_known(self, name: str, build: str, what: str) -> None:
        """Bind a build; facts that a server did not know, then or now, are no difference."""
        bound = self.ledger.recall(name)
        before, now = str(bound).split(FACTS), build.split(FACTS)
        if len(before) == len(now) > 1 and not any(
            old != new for old, new in zip(before, now, strict=True) if old and new
        ):
            return
        self._bind(name, build, what)

    def _bind(self, name: str, value: Any, what: str, code: str = "job_mismatch") -> None:
        bound = self.ledger.recall(name)
        if bound is None:
            self.ledger.remember(name, value)
        elif bound != value:
            raise BatchError(
                f"the job at {self.directory.path} {what}; resume that one, or start a new job with another output",
                code,
            )


@contextmanager
def open_session(job: Job, directory: JobDirectory) -> Iterator[JobSession]:
    """Open the job and lock its directory. Raises BatchError if it differs from the original job or cannot start.

    Until the job is known to be the same, none of its files are changed, and finished files never are.
    """
    ledger: Ledger | None = None
    destination: OutputWriter | None = None
    source: RowSource | None = None
    try:
        if directory.state.exists():
            ledger = _open_ledger(job, directory)
        bound = "" if ledger is None else ledger.recall("input", "")
        source = open_job_source(job, bound)
        first = first_record(source)
        destination = create_output(job, directory)
        if destination is not None:
            destination.check()
            if isinstance(source, MessageQueue):
                source.join(destination, job.output.shown)
        if ledger is None:
            for path in map(directory.result_file, RowStatus):
                if path.exists():  # a new job would write there
                    raise output_exists_error(str(path), job.input.address)
            ledger = _open_ledger(job, directory)
        created = ledger.recall("created")
        if created is None:
            created = int(time.time())
            ledger.remember("created", created)
        form = create_row_format(job, source, first, created)
        session = JobSession(job, directory, source, form, ledger, destination)
        session._bind_directory()
        session._bind("job", job.binding(), _difference(ledger.recall("job"), job.binding()))
        session._bind(
            "input", source.fingerprint, "was started with another input than the current one", "input_changed"
        )
        index = None if job.encode is None else [job.encode.index, job.encode.metric]
        if session.finished:
            session._bind("index", index, "was finished with another --index or --metric")
        else:
            ledger.recover()
            if ledger.recall("index") != index:
                ledger.remember("index", index)
        directory.write_job(job)
        yield session
    finally:
        for opened in (source, destination, ledger):
            if opened is not None:
                opened.close()


def open_job_source(job: Job, bound_fingerprint: str = "") -> RowSource:
    """Open the input of a job, which may be a queue. Raises BatchError as `open_source` does."""
    if is_queue(job.input.address):
        return open_queue(job.input, job.run_options)
    return open_source(job.input, bound_fingerprint, wanted_columns(job))


def _open_ledger(job: Job, directory: JobDirectory) -> Ledger:
    return QueueLedger(directory) if is_queue(job.input.address) else open_ledger(directory, job.input.part.first)


_OPTIONS = {
    "input.address": "INPUT",
    "input.format": "--input-format",
    "output.address": "--out",
    "output.format": "--output-format",
    "output.table": "--output-table",
    "output.columns": "--write",
    "retrieval.address": "--retrieve",
}
"""Options with other names than their fields."""


def _difference(bound: Any, current: dict[str, Any]) -> str:
    """Return what differs, by option."""
    before = bound or {}
    names = [
        _OPTIONS.get(f"{part}.{name}", f"--{'retrieve-' * (part == 'retrieval')}{name.replace('_', '-')}")
        for part in {**current, **before}
        for name in {**current.get(part, {}), **before.get(part, {})}
        if bound is not None and before.get(part, {}).get(name) != current.get(part, {}).get(name)
    ]
    return f"was started with another {', '.join(names)}"
