"""The thread that makes what a job has done last."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from inflight.batch.job.rows import RowResult, RowStatus
from inflight.batch.state.checkpoint_thread import Checkpointer
from tests.batch.state.remote_state.machine import JobMachine
from tests.fixtures.waiting import wait_until


def test_the_end_waits_for_nothing_before_it_is_on_the_disk(tmp_path: Path) -> None:
    """What follows a checkpoint may hang, as a storage does that is away, and the machine may go away meanwhile."""
    machine = JobMachine(tmp_path, str(tmp_path / "carried"))
    machine.begin()
    ledger = machine.ledger
    assert ledger is not None
    hanging, over = threading.Event(), threading.Event()

    def after() -> None:
        hanging.set()
        assert over.wait(60)

    checkpoints = Checkpointer(ledger, 0.01, time.monotonic(), after, lambda error: None)
    checkpoints.start()
    assert hanging.wait(60)
    ledger.add(RowResult(0, 1, "0", RowStatus.OK, b"{}"))
    ending = threading.Thread(target=checkpoints.finish)
    ending.start()
    wait_until(lambda: ledger.next)
    assert ending.is_alive()
    assert ledger.next == 1
    over.set()
    ending.join()
    machine.close()
