"""One life of a job: rows are asked until there are none, or until something ends it early."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from inflight_client import InflightError
from inflight_client.results import Generation

from inflight.batch.backend import Backend
from inflight.batch.carrying import Carrying
from inflight.batch.checkpoints import Checkpoints
from inflight.batch.delivery import Delivery
from inflight.batch.feed import Feed
from inflight.batch.flow.pool import Pool
from inflight.batch.opening import OpenJob
from inflight.batch.row import Kind, Row
from inflight.batch.seen.progress import State
from inflight.batch.signals import CANCELLED, INTERRUPTED, Signals
from inflight.batch.telling import Telling

_LOOK_SECONDS = 1.0
_QUIET_SECONDS = 3.0
"""Without a server, until a job is told to wait for one."""


class Life:
    """`state` and `sentence` say why it ended, where it ended before the last row."""

    def __init__(
        self,
        job: OpenJob,
        backends: Sequence[Backend],
        telling: Telling,
        carrying: Carrying,
        signals: Signals,
        say: Callable[[str], None],
    ) -> None:
        self.state, self.sentence = State.RUNNING, ""
        self._job, self._telling, self._carrying = job, telling, carrying
        self._signals, self._say = signals, say
        self._running = job.job.running
        self._feed = Feed(job.source, job.form, job.ledger, job.job, job.one_key)
        self._pool = Pool(backends, self._running, self._feed, self._done, job.ledger, job.bind_build, say)
        self._draining: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Live it, and make all that came of it last. Raises BatchError for what the job can't go on with."""
        loop = asyncio.get_running_loop()
        checkpoints = Checkpoints(
            self._job.ledger,
            self._running.checkpoint_seconds,
            self._job.since,
            self._after(),
            lambda error: _from_thread(loop, self._stop, State.FAILED, str(error), 0.0),
        )
        checkpoints.start()
        looking = loop.create_task(self._look())
        looking.add_done_callback(self._looked)
        self._feed.start()
        try:
            with self._signals.telling(lambda count: _from_thread(loop, self._signalled, count)):
                await self._pool.run()
            over = self._feed.exhausted and self.state is State.RUNNING
        finally:
            self._feed.stop()
            for task in filter(None, (looking, self._draining)):
                task.cancel()
            await self._pool.close()
            await asyncio.to_thread(self._feed.join)
            await asyncio.to_thread(checkpoints.finish)
        if over:
            self._job.ledger.end_of_input(self._feed.read_to)

    def _after(self) -> Callable[[], None]:
        """What follows each checkpoint."""
        destination, ledger = self._job.destination, self._job.ledger
        if destination is None or not destination.takes_rows:
            return lambda: self._carrying.go_on(ledger)
        return Delivery(ledger, self._job.directory.lines(Kind.OK), destination).run

    def _done(self, row: Row, result: Generation | InflightError, attempts: int) -> None:
        form = self._job.form
        if isinstance(result, InflightError):
            self._job.ledger.add(form.failed(row, result, attempts))
        else:
            self._job.ledger.add(form.answered(row, result, attempts))

    async def _look(self) -> None:
        """Tell how it stands, and see whether somebody wants its end."""
        heard = time.monotonic()
        while True:
            pool = self._pool.state()
            if any(server.up for server in pool.servers):
                heard = time.monotonic()
            state = State.WAITING if time.monotonic() - heard > _QUIET_SECONDS else State.RUNNING
            if self._draining is not None:
                state = State.DRAINING  # how it ends is told once it has
            self._telling.tell(state, self.sentence, pool.waiting, pool.servers)
            if self._job.directory.cancel.exists():
                self._stop(State.CANCELLED, CANCELLED, 0.0)
            await asyncio.sleep(_LOOK_SECONDS)

    def _looked(self, looking: asyncio.Task[None]) -> None:
        """Without it nobody would hear of the job, and nobody could cancel it."""
        if not looking.cancelled() and (error := looking.exception()) is not None:
            self._stop(State.FAILED, f"it can't say how it stands: {error!r}", 0.0)

    def _signalled(self, count: int) -> None:
        notice = self._running.notice
        self._stop(State.STOPPED, INTERRUPTED, notice)
        if count > 1:
            self._drain(0.0)
        else:
            self._say(f"Stopping: requests in flight have {notice:g} s to finish. Interrupt again to stop at once.")

    def _stop(self, state: State, sentence: str, seconds: float) -> None:
        """Ask nothing more, and end what is in flight after so many seconds."""
        if self._draining is None:
            self.state, self.sentence = state, sentence
            self._feed.stop()
            self._pool.stop()
            self._drain(seconds)

    def _drain(self, seconds: float) -> None:
        if self._draining is not None:
            self._draining.cancel()
        self._draining = asyncio.get_running_loop().create_task(self._pool.drain(seconds))


def _from_thread(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *values: object) -> None:
    loop.call_soon_threadsafe(call, *values)
