"""The thread that makes what a job has done last, every half second or so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from inflight.batch.state.ledger import Ledger


class Checkpointer:
    """The time from `since`, by the monotonic clock, counts as the job's.

    `after` is called behind each checkpoint, in the same thread: for what goes on from there.

    A failure ends it: `failed` is called, and `failure` says what it was.
    """

    def __init__(
        self,
        ledger: Ledger,
        interval: float,
        started_at: float,
        on_checkpoint: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._ledger, self._interval, self._on_checkpoint, self._on_failure = (
            ledger,
            interval,
            on_checkpoint,
            on_failure,
        )
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._last = started_at
        self._thread = threading.Thread(target=self._run, name="batch-checkpoints", daemon=True)
        self.failure: BaseException | None = None
        self.busy_seconds = 0.0
        """Seconds of the thread's own that checkpoints took, waiting for the disk included."""

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Stop, and make a last one. Raises what the thread failed of, or BatchError.

        The commit comes at once: what follows the one before may take long, as a storage does that is away.
        """
        self._stopping.set()
        try:
            self._commit()
        finally:
            self._thread.join()
        if self.failure is not None:
            raise self.failure
        self._checkpoint()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._interval):
                self._checkpoint()
        except BaseException as error:  # a thread that ended silently would let a job run for nothing
            self.failure = error
            self._on_failure(error)

    def _checkpoint(self) -> None:
        began = time.monotonic()
        self._commit()
        self._on_checkpoint()
        self.busy_seconds += time.monotonic() - began

    def _commit(self) -> None:
        with self._lock:
            now = time.monotonic()
            self._ledger.checkpoint(now - self._last)
            self._last = now
