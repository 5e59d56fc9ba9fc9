"""`inflight batch status` of jobs that run, ended, or were killed."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

from inflight.batch.job.rows import RowStatus
from inflight.batch.reporting.progress import JobState, read_progress, write_progress
from tests.batch.reporting.sample_progress import sample_progress
from tests.batch.sample_jobs import job_of, run, running
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.waiting import wait_until


def test_a_running_job_is_told_from_outside_and_watched_to_its_end(batch: CommandRunner, tmp_path: Path) -> None:
    with running(job_of(tmp_path, ("tea", "stuck", "milk"))) as directory:
        wait_until(lambda: (now := read_progress(directory)) and now.counts.done >= 2 and now.in_flight)
        done = batch("status", "answers.jsonl")
        assert done.code == 0
        assert "state    running\n" in done.out
        assert "server   gpu1:8001: up, 1 in flight\n" in done.out
        assert "1 of them wait for row 2" in done.out
        (status,) = batch("status", "answers.jsonl", "--json").objects
        assert (status["state"], status["running"]) == ("running", True)
        assert status["progress"]["counts"]["ok"] == 2
        assert (status["progress"]["out_of_order"], directory.result_file(RowStatus.OK).read_bytes().count(b"\n")) == (
            1,
            1,
        )
        threading.Timer(0.5, directory.cancel.touch).start()
        watched = batch("status", "answers.job", "--watch", "0.1", "--json").objects
    assert len(watched) > 1
    assert (watched[0]["state"], watched[-1]["state"]) == ("running", "cancelled")


def test_a_killed_job_is_told_as_such_with_the_command_that_goes_on(batch: CommandRunner, tmp_path: Path) -> None:
    directory, _ = run(job_of(tmp_path, ("tea",)))
    write_progress(directory, sample_progress(host=socket.gethostname()))
    done = batch("status", "answers.jsonl")
    assert "state    killed: it was killed" in done.out
    assert "resume with: inflight batch resume answers.job\n" in done.out
    assert "ETA" not in done.out


def test_figures_of_a_job_that_ended(batch: CommandRunner, tmp_path: Path) -> None:
    directory, _ = run(job_of(tmp_path, ("tea",)))
    write_progress(directory, sample_progress(JobState.STOPPED, message="no server answered"))
    output = batch("status", "answers.jsonl").out
    assert "state    stopped: no server answered; resume with: " in output
    assert "rows     5,000 of 10,000 rows (50.0%)\n" in output
    assert "4,990 answered, 7 errors, 12 retries, 3 dead letters, failed: prompt_too_long 7, row_invalid 3\n" in output
    assert "tokens   400,000 of input, 600,000 of output\n" in output
    assert "time     1 h 00 min in 2 runs\n" in output
    assert "cost     2.50\n" in output


def test_without_a_path_all_jobs_that_lie_here(batch: CommandRunner, tmp_path: Path) -> None:
    done = batch("status")
    assert done.code == 1
    assert "there is no job in" in done.err
    run(job_of(tmp_path, ("tea",)))
    assert batch("status").out == "answers.job: finished, 1 of 1 row (100.0%)\n"
    (status,) = batch("status", "--json").objects
    assert status["job"] == "answers.job"
    assert json.loads(json.dumps(status))["state"] == "finished"


def test_no_job_is_one_sentence(batch: CommandRunner) -> None:
    done = batch("status", "nothing.jsonl")
    assert done.code == 1
    assert "Error: there is no job at nothing.jsonl" in done.err
    assert done.err.rstrip().endswith("[job_not_found]")
