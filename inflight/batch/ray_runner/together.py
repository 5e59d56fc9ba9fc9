"""How a job stands whose parts run elsewhere: what they write of themselves, added up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from inflight.batch.counts import Counts
from inflight.batch.job_directory import JobDirectory
from inflight.batch.opening import OpenJob
from inflight.batch.seen.cost import Cost
from inflight.batch.seen.pace import Pace
from inflight.batch.seen.progress import Progress, Server, State, read_progress, show_progress


class Together:
    """Made when a life of the whole job begins, which has so many rows."""

    def __init__(
        self, job: OpenJob, rows: int, parts: Sequence[JobDirectory], show: Callable[[Progress], None]
    ) -> None:
        self._job, self._rows, self._show = job, rows, show
        self._before = Counts(**job.ledger.recall("before_parts"))
        self._open = list(parts)
        self._ended: list[Progress] = []
        self._kept = time.monotonic()
        self._pace = Pace(self._counts(self._read()), rows)

    def keep(self) -> None:
        """A checkpoint of the whole job, with the time since the one before. Raises BatchError."""
        now = time.monotonic()
        self._job.ledger.checkpoint(now - self._kept)
        self._kept = now

    def tell(self, state: State, sentence: str = "") -> Counts:
        """Write it down, and show it."""
        found = self._read()
        counts = self._counts(found)
        living = [one for one in found if one.state.lives]
        servers = _servers(living)
        if state is State.RUNNING and living and all(one.state is State.WAITING for one in living):
            state = State.WAITING
        left = sum(one.left for one in living)
        progress = Progress.now(
            state,
            sentence,
            servers,
            counts=counts,
            total=self._rows,
            share=counts.done / self._rows if self._rows else 1.0,
            waiting=sum(one.waiting for one in living),
            left=left,
            speed=self._pace.look(counts, left=left),
            cost=Cost.of(counts, self._job.job.running.price_per_hour),
        )
        show_progress(self._job.directory, progress, self._show)
        return counts

    def _read(self) -> list[Progress]:
        """What all parts wrote last; those that have finished are read once."""
        found = []
        for directory in list(self._open):
            progress = read_progress(directory)
            if progress is None:
                continue
            if progress.state is State.FINISHED:
                self._open.remove(directory)
                self._ended.append(progress)
            else:
                found.append(progress)
        return self._ended + found

    def _counts(self, found: Sequence[Progress]) -> Counts:
        own = self._job.ledger.counts
        if self._job.all_done:
            return own
        whole = Counts(seconds=own.seconds, lives=own.lives)
        add(whole, self._before)
        for one in found:
            add(whole, one.counts)
        return whole


def add(whole: Counts, part: Counts) -> None:
    """Rows, tokens and codes of a part; time and lives are the whole job's own."""
    for name in ("ok", "error", "dead", "retries", "input_tokens", "output_tokens"):
        setattr(whole, name, getattr(whole, name) + getattr(part, name))
    for code, count in part.codes.items():
        whole.codes[code] = whole.codes.get(code, 0) + count


def _servers(living: Sequence[Progress]) -> tuple[Server, ...]:
    """Each server once, with what all parts have in flight there."""
    found: dict[str, Server] = {}
    for server in (server for one in living for server in one.servers):
        before = found.get(server.name)
        limits = [one.limit for one in (before, server) if one is not None and one.limit is not None]
        found[server.name] = Server(
            name=server.name,
            up=server.up or (before is not None and before.up),
            in_flight=server.in_flight + (before.in_flight if before else 0),
            limit=sum(limits) if limits else None,
        )
    return tuple(found.values())
