"""How a job stands at a moment, as its process writes it each second and `inflight batch status` reads it."""

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

from inflight.batch.counts import Counts
from inflight.batch.errors import BatchError
from inflight.batch.job_directory import JobDirectory
from inflight.batch.seen.cost import Cost
from inflight.batch.seen.pace import Speed


class State(StrEnum):
    """What a job does, or how its last life ended."""

    RUNNING = "running"
    DRAINING = "draining"
    WAITING = "waiting for a server"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FINISHED = "finished"
    FAILED = "failed"

    @property
    def lives(self) -> bool:
        """Whether a process should be there."""
        return self in (State.RUNNING, State.DRAINING, State.WAITING)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True)


class Server(_Strict):
    """One that the job asks: its address, whether it answers, what is in flight there, and the most that may be."""

    name: str
    up: bool
    in_flight: int = 0
    limit: int | None = None


class Progress(_Strict):
    """A moment of a job. Holds nothing of prompts and answers.

    `when`: seconds since 1970. `counts`: of all lives, until now. `total`: rows of the input, where that is known.
    `share`: how much of the input is done, 0 to 1, by how far it was read, where that is known.
    `in_flight`: rows at servers. `waiting`: rows that failed and will be sent again. `left`: rows of `counts` that are
    asked once more, and have no new outcome yet. `held`: rows of `counts` that wait in the state, not in the output's
    lines, for the row with the number `next_row`, from 1. `limit`: the most rows in flight that the job allows now.
    `sentence`: why it stopped, failed, or waits.
    """

    when: float
    pid: int
    host: str
    state: State
    sentence: str = ""
    counts: Counts = Field(default_factory=Counts)
    total: int | None = None
    share: float | None = None
    in_flight: int = 0
    waiting: int = 0
    left: int = 0
    held: int = 0
    next_row: int = 1
    limit: int | None = None
    servers: tuple[Server, ...] = ()
    speed: Speed = Speed()
    cost: Cost | None = None

    @classmethod
    def now(cls, state: State, sentence: str, servers: tuple[Server, ...], **known: Any) -> Progress:
        """This moment, as this process sees it; `known`: the fields that neither the clock nor the servers tell."""
        limits = [server.limit for server in servers if server.limit is not None]
        return cls(
            when=time.time(),
            pid=os.getpid(),
            host=socket.gethostname(),
            state=state,
            sentence=sentence,
            in_flight=sum(server.in_flight for server in servers),
            limit=sum(limits) if limits else None,
            servers=servers,
            **known,
        )

    @field_validator("counts")
    @classmethod
    def _of_its_own(cls, counts: Counts) -> Counts:
        return replace(counts, codes=dict(counts.codes))  # the job's go on counting

    @property
    def rows(self) -> int:
        """Rows that are done."""
        return self.counts.done - self.left

    @property
    def done(self) -> float | None:
        """How much of the job is done, 0 to 1; None where nobody knows."""
        if self.state is State.FINISHED:
            return 1.0
        if self.total is not None:
            return self.rows / self.total if self.total else 1.0
        return self.share


def write_progress(directory: JobDirectory, progress: Progress) -> None:
    """Put it in place of the one before, whole. Raises BatchError `disk_full`, `job_failed`."""
    directory.write(directory.progress, progress.model_dump_json() + "\n")


def show_progress(directory: JobDirectory, progress: Progress, show: Callable[[Progress], None]) -> None:
    """Write it and show it. What keeps it from being written keeps nobody from running on: the job's own files say so
    themselves when they are written.
    """
    with contextlib.suppress(BatchError):
        write_progress(directory, progress)
    show(progress)


def read_progress(directory: JobDirectory) -> Progress | None:
    """The last one written; None where there is none that can be read, and nobody knows."""
    try:
        return Progress.model_validate_json(directory.progress.read_bytes())
    except (OSError, ValidationError):
        return None
