"""The thread that commits checkpoints, about every half second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from inflight.batch.state.ledger import Ledger


class Checkpointer:
    """Commits checkpoints. The time from `started_at`, on the monotonic clock, counts as the job's.

    `on_checkpoint` is called after each checkpoint, in the same thread. A failure ends
    the thread: `on_failure` is called with it.
    """

    def __init__(
        self,
        ledger: Ledger,
        interval: float,
        started_at: float,
        on_checkpoint: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._ledger, self._interval = ledger, interval
        self._on_checkpoint, self._on_failure = on_checkpoint, on_failure
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._last = started_at
        self._thread = threading.Thread(target=self._run, name="batch-checkpoints", daemon=True)
        self.failure: BaseException | None = None
        self.busy_seconds = 0.0
        """Seconds that the thread spent on checkpoints, including waiting for the disk."""

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Stop, and commit a last checkpoint. Raises the thread's failure, or BatchError.

        The commit does not wait: what follows the previous one may take long, for example if a storage is unreachable.
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
        except BaseException as error:  # otherwise a silent end would let the job run without checkpoints
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
