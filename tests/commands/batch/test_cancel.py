"""`inflight batch cancel` of a job that runs, and of one that does not."""

from __future__ import annotations

from pathlib import Path

from inflight.batch.job.rows import RowStatus
from inflight.batch.reporting.status import job_status
from tests.batch.sample_jobs import job_of, run, running
from tests.fixtures.command_runner import CommandRunner


def test_it_waits_until_the_job_has_ended_and_what_is_done_stays(batch: CommandRunner, tmp_path: Path) -> None:
    job = job_of(tmp_path, ("tea", "stuck"))
    with running(job) as directory:
        done = batch("cancel", "answers.jsonl")
        assert not directory.is_running
    assert done.code == 0
    assert done.out == "The job at answers.job has ended: cancelled.\n"
    assert job_status(directory).state == "cancelled"
    assert directory.result_file(RowStatus.OK).read_bytes().count(b"\n") == 1
    _, end = run(job)
    assert end.exit_code == 0, "it can be gone on with"
    assert directory.result_file(RowStatus.OK).read_bytes().count(b"\n") == 2


def test_where_nothing_runs_it_says_so_and_changes_nothing(batch: CommandRunner, tmp_path: Path) -> None:
    directory, _ = run(job_of(tmp_path, ("tea",)))
    done = batch("cancel", "answers.jsonl")
    assert (done.code, done.out) == (0, "No process runs the job at answers.job: finished.\n")
    assert not directory.cancel.exists()
    assert batch("cancel", "nothing").code == 1
