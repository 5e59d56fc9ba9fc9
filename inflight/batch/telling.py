"""How a running job stands, told each second: to its file of progress, and to whoever watches."""

from __future__ import annotations

from collections.abc import Callable

from inflight.batch.job import Running
from inflight.batch.opening import OpenJob
from inflight.batch.seen.cost import Cost
from inflight.batch.seen.pace import Pace
from inflight.batch.seen.progress import Progress, Server, State, show_progress
from inflight.batch.state.retrial import Retrial


class Telling:
    """Made when a life begins."""

    def __init__(self, job: OpenJob, running: Running, show: Callable[[Progress], None]) -> None:
        self._job, self._running, self._show = job, running, show
        self._total = job.total
        self._pace = Pace(job.ledger.counts, self._total, self._share(), left=self._left)

    def tell(self, state: State, sentence: str = "", waiting: int = 0, servers: tuple[Server, ...] = ()) -> None:
        ledger = self._job.ledger
        progress = Progress.now(
            state,
            sentence,
            servers,
            counts=ledger.counts,
            total=self._total,
            share=self._share(),
            waiting=waiting,
            left=self._left,
            held=ledger.ahead,
            next_row=ledger.next - self._job.job.input.part.first + 1,
            speed=self._pace.look(ledger.counts, self._share(), self._left),
            cost=Cost.of(ledger.counts, self._running.price_per_hour),
        )
        show_progress(self._job.directory, progress, self._show)

    def end(self, state: State, sentence: str) -> None:
        self.tell(state, sentence)

    @property
    def _left(self) -> int:
        return self._job.ledger.left if isinstance(self._job.ledger, Retrial) else 0

    def _share(self) -> float | None:
        """Rows are asked in another order than they come in: so many of those that were read are done."""
        number, position = self._job.ledger.read
        rows = number - self._job.job.input.part.first
        share = 0.0 if position is None else self._job.source.share_read(position)
        if share is None or rows <= 0:
            return share
        done = self._job.ledger.counts.done - self._left
        limit = self._job.job.input.limit
        return min(1.0, max(share * done / rows, done / limit if limit else 0.0))
