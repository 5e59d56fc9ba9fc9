"""How far a job is, reported while rows are sent in another order than they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowResult, RowStatus
from inflight.batch.reporting.progress import JobProgress, JobState
from inflight.batch.reporting.progress_reporter import ProgressReporter
from inflight.batch.session import open_session
from tests.batch.sample_jobs import job_of


def test_what_is_done_counts_though_the_first_row_is_not(tmp_path: Path) -> None:
    job = job_of(tmp_path, [f"row {number:03}" for number in range(400)])
    directory = JobDirectory.from_output(job.output)
    directory.path.mkdir(parents=True)
    reports: list[JobProgress] = []
    with open_session(job, directory) as session:
        telling = ProgressReporter(session, job.run_options, reports.append)
        telling.report(JobState.RUNNING)
        records = list(session.source.read())[:200]
        session.ledger.record_positions(
            [(number, record.line, record.position) for number, record in enumerate(records)]
        )
        for number in range(100, 200):
            session.ledger.add(RowResult(number, number + 1, str(number), RowStatus.OK, b"{}"))
        session.ledger.checkpoint()
        telling.report(JobState.RUNNING)
    assert reports[0].fraction_done == 0.0
    assert reports[1].fraction_done == pytest.approx(0.25, abs=0.02)
