"""How far a job is, told while rows are asked in another order than they come in."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflight.batch.job_directory import JobDirectory
from inflight.batch.opening import opened
from inflight.batch.row import Kind, Outcome
from inflight.batch.seen.progress import Progress, State
from inflight.batch.telling import Telling
from tests.batch.seen.jobs import job_of


def test_what_is_done_counts_though_the_first_row_is_not(tmp_path: Path) -> None:
    job = job_of(tmp_path, [f"row {number:03}" for number in range(400)])
    directory = JobDirectory.of(job.output)
    directory.path.mkdir(parents=True)
    told: list[Progress] = []
    with opened(job, directory) as one:
        telling = Telling(one, job.running, told.append)
        telling.tell(State.RUNNING)
        records = list(one.source.read())[:200]
        one.ledger.mark([(number, record.line, record.position) for number, record in enumerate(records)])
        for number in range(100, 200):
            one.ledger.add(Outcome(number, number + 1, str(number), Kind.OK, b"{}"))
        one.ledger.checkpoint()
        telling.tell(State.RUNNING)
    assert told[0].done == 0.0
    assert told[1].done == pytest.approx(0.25, abs=0.02)
