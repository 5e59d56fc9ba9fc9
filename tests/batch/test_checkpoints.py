"""The thread that makes what a job has done last."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from inflight.batch.checkpoints import Checkpoints
from inflight.batch.row import Kind, Outcome
from tests.batch.carry.machine import Machine


def test_the_end_waits_for_nothing_before_it_is_on_the_disk(tmp_path: Path) -> None:
    """What follows a checkpoint may hang, as a storage does that is away, and the machine may go away meanwhile."""
    machine = Machine(tmp_path, str(tmp_path / "carried"))
    machine.begin()
    ledger = machine.ledger
    assert ledger is not None
    hanging, over = threading.Event(), threading.Event()

    def after() -> None:
        hanging.set()
        assert over.wait(60)

    checkpoints = Checkpoints(ledger, 0.01, time.monotonic(), after, lambda error: None)
    checkpoints.start()
    assert hanging.wait(60)
    ledger.add(Outcome(0, 1, "0", Kind.OK, b"{}"))
    ending = threading.Thread(target=checkpoints.finish)
    ending.start()
    until = time.monotonic() + 60
    while not ledger.next and time.monotonic() < until:
        time.sleep(0.01)
    assert ending.is_alive()
    assert ledger.next == 1
    over.set()
    ending.join()
    machine.close()
