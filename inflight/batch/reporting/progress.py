"""The progress of a job, which its process writes each second and `inflight batch status` reads."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from inflight.batch.errors import BatchError
from inflight.batch.job.counts import Counts
from inflight.batch.job.directory import JobDirectory
from inflight.batch.reporting.cost import JobCost
from inflight.batch.reporting.throughput import Throughput


class JobState(StrEnum):
    """What a job does, or how its last run ended."""

    RUNNING = "running"
    DRAINING = "draining"
    WAITING = "waiting for a server"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FINISHED = "finished"
    FAILED = "failed"

    @property
    def is_active(self) -> bool:
        """Whether a process should be running."""
        return self in (JobState.RUNNING, JobState.DRAINING, JobState.WAITING)


class _ProgressModel(BaseModel):
    model_config = ConfigDict(frozen=True)


class ServerStatus(_ProgressModel):
    """One server of the job: its address, whether it is up, its rows in flight, and their current limit."""

    name: str
    up: bool
    in_flight: int = 0
    concurrency_limit: int | None = None


class JobProgress(_ProgressModel):
    """A snapshot of a job. Contains nothing of prompts and answers.

    `timestamp`: seconds since 1970. `message`: why the job stopped, failed, or waits. `counts`: of all runs so far.
    `total`: rows of the input, if known. `input_fraction`: fraction of the input that was read, if known. `in_flight`:
    rows at servers. `pending_retries`: rows that failed and will be sent again. `retries_left`: rows of `counts` that a
    retry sends again and that have no new result yet. `out_of_order`: rows of `counts` whose results wait in the state
    until row `next_row` (from 1) is done. `concurrency_limit`: maximum rows in flight now. `expected`: how the deadline
    of --finish-by will be kept. `queue_messages`: messages of a queue without an acknowledgement; `queue_age`: how
    many seconds ago the oldest message that the job holds was sent.
    """

    timestamp: float
    pid: int
    host: str
    state: JobState
    message: str = ""
    counts: Counts = Field(default_factory=Counts)
    total: int | None = None
    input_fraction: float | None = None
    in_flight: int = 0
    pending_retries: int = 0
    retries_left: int = 0
    out_of_order: int = 0
    next_row: int = 1
    concurrency_limit: int | None = None
    servers: tuple[ServerStatus, ...] = ()
    throughput: Throughput = Throughput()
    cost: JobCost | None = None
    expected: str = ""
    queue_messages: int | None = None
    queue_age: float | None = None

    @classmethod
    def now(cls, state: JobState, message: str, servers: tuple[ServerStatus, ...], **values: Any) -> JobProgress:
        """Return the current progress of this process; `values` are the fields that neither the clock nor the servers
        give."""
        limits = [server.concurrency_limit for server in servers if server.concurrency_limit is not None]
        return cls(
            timestamp=time.time(),
            pid=os.getpid(),
            host=socket.gethostname(),
            state=state,
            message=message,
            in_flight=sum(server.in_flight for server in servers),
            concurrency_limit=sum(limits) if limits else None,
            servers=servers,
            **values,
        )

    @field_validator("counts")
    @classmethod
    def _copy_counts(cls, counts: Counts) -> Counts:
        return replace(counts, codes=dict(counts.codes))  # the job's own counts change later

    @property
    def rows_done(self) -> int:
        """Rows that are done."""
        return self.counts.done - self.retries_left

    @property
    def fraction_done(self) -> float | None:
        """Fraction of the job that is done, 0 to 1; None if unknown."""
        if self.state is JobState.FINISHED:
            return 1.0
        if self.total is not None:
            return self.rows_done / self.total if self.total else 1.0
        return self.input_fraction


def write_progress(directory: JobDirectory, progress: JobProgress) -> None:
    """Replace the progress file atomically. Raises BatchError `disk_full`, `job_failed`."""
    directory.write(directory.progress, progress.model_dump_json() + "\n")


def publish_progress(
    directory: JobDirectory, progress: JobProgress, on_progress: Callable[[JobProgress], None]
) -> None:
    """Write the progress and show it. A failed write does not stop the job: the job's own files report the error
    themselves.
    """
    with contextlib.suppress(BatchError):
        write_progress(directory, progress)
    on_progress(progress)


def read_progress(directory: JobDirectory) -> JobProgress | None:
    """Return the last progress that was written; None if it is missing or unreadable."""
    try:
        return JobProgress.model_validate_json(directory.progress.read_bytes())
    except (OSError, ValidationError):
        return None
