"""The status of a job whose parts run elsewhere: the sum of the progress that they write."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from inflight.batch.job.counts import WORK, Counts
from inflight.batch.job.directory import JobDirectory
from inflight.batch.reporting.cost import JobCost
from inflight.batch.reporting.progress import JobProgress, JobState, ServerStatus, publish_progress, read_progress
from inflight.batch.reporting.throughput import RateEstimator
from inflight.batch.session import JobSession


class AggregateStatus:
    """The status of the whole job in this run. Created at its start; `rows` is the number of rows."""

    def __init__(
        self, session: JobSession, rows: int, parts: Sequence[JobDirectory], on_progress: Callable[[JobProgress], None]
    ) -> None:
        self._session, self._rows, self._on_progress = session, rows, on_progress
        self._before = Counts(**session.ledger.recall("counts_before_parts"))
        self._open = list(parts)
        self._ended: list[JobProgress] = []
        self._last_checkpoint = time.monotonic()
        self._rate_estimator = RateEstimator(self._counts(self._read()), rows)

    def checkpoint(self) -> None:
        """Commit a checkpoint of the whole job, with the time since the last one. Raises BatchError."""
        now = time.monotonic()
        self._session.ledger.checkpoint(now - self._last_checkpoint)
        self._last_checkpoint = now

    def report(self, state: JobState, message: str = "") -> Counts:
        """Write the progress and show it."""
        parts = self._read()
        counts = self._counts(parts)
        living = [part for part in parts if part.state.is_active]
        servers = _servers(living)
        if state is JobState.RUNNING and living and all(part.state is JobState.WAITING for part in living):
            state = JobState.WAITING
        left = sum(part.retries_left for part in living)
        progress = JobProgress.now(
            state,
            message,
            servers,
            counts=counts,
            total=self._rows,
            input_fraction=counts.done / self._rows if self._rows else 1.0,
            pending_retries=sum(part.pending_retries for part in living),
            retries_left=left,
            throughput=self._rate_estimator.update(counts, retries_left=left),
            cost=JobCost.from_counts(counts, self._session.job.run_options),
        )
        publish_progress(self._session.directory, progress, self._on_progress)
        return counts

    def _read(self) -> list[JobProgress]:
        """Return the latest progress of all parts; finished ones are read once."""
        latest = []
        for directory in list(self._open):
            progress = read_progress(directory)
            if progress is None:
                continue
            if progress.state is JobState.FINISHED:
                self._open.remove(directory)
                self._ended.append(progress)
            else:
                latest.append(progress)
        return self._ended + latest

    def _counts(self, parts: Sequence[JobProgress]) -> Counts:
        own = self._session.ledger.counts
        if self._session.all_done:
            return own
        whole = Counts(seconds=own.seconds, runs=own.runs)
        add_counts(whole, self._before)
        for part in parts:
            add_counts(whole, part.counts)
        return whole


def add_counts(whole: Counts, part: Counts) -> None:
    """Add a part's rows, tokens and codes; time and runs are those of the whole job."""
    for name in ("ok", "error", "dead", *WORK):
        setattr(whole, name, getattr(whole, name) + getattr(part, name))
    for code, count in part.codes.items():
        whole.codes[code] = whole.codes.get(code, 0) + count


def _servers(living: Sequence[JobProgress]) -> tuple[ServerStatus, ...]:
    """Return each server once, with the rows of all parts in flight there."""
    servers: dict[str, ServerStatus] = {}
    for server in (server for part in living for server in part.servers):
        before = servers.get(server.name)
        limits = [
            status.concurrency_limit
            for status in (before, server)
            if status is not None and status.concurrency_limit is not None
        ]
        servers[server.name] = ServerStatus(
            name=server.name,
            up=server.up or (before is not None and before.up),
            in_flight=server.in_flight + (before.in_flight if before else 0),
            concurrency_limit=sum(limits) if limits else None,
        )
    return tuple(servers.values())
