"""The status of a job, as another process sees it."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
import time
from pathlib import Path

import pytest

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.reporting.progress import JobProgress, JobState, write_progress
from inflight.batch.reporting.status import find_jobs, job_status
from inflight.batch.runner import JobRunner
from inflight.batch.signals import INTERRUPTED
from tests.batch.reporting.sample_progress import sample_progress
from tests.batch.sample_jobs import job_of, run
from tests.batch.scripted_backend import ScriptedBackend
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    """A job that has not said anything."""
    job = job_of(tmp_path, ("tea",))
    directory = JobDirectory.from_output(job.output)
    directory.path.mkdir()
    directory.write_job(job)
    return directory


def test_a_job_whose_process_is_gone_without_a_word_was_killed(directory: JobDirectory) -> None:
    write_progress(directory, sample_progress(host=socket.gethostname()))
    status = job_status(directory)
    assert (status.state, status.running) == ("killed", False)
    assert status.message.endswith(f"resume with: inflight batch resume {directory.path}")


def test_before_its_first_word_a_job_begins_or_was_killed(directory: JobDirectory) -> None:
    with directory.locked():
        status = job_status(directory)
        assert (status.state, status.running) == ("starting", True)
    status = job_status(directory)
    assert (status.state, status.running) == ("killed", False)
    assert "inflight batch resume" in status.message


def test_while_the_lock_is_held_the_progress_is_believed(directory: JobDirectory) -> None:
    with directory.locked():
        write_progress(directory, sample_progress(JobState.WAITING))
        assert job_status(directory).state == "waiting for a server"
        write_progress(directory, sample_progress(JobState.STOPPED, message=INTERRUPTED))
        assert job_status(directory).state == "starting", "what an earlier life has left"
        write_progress(directory, sample_progress(timestamp=time.time() - 100))
        status = job_status(directory)
        assert (status.state, status.running) == ("running", True)
        assert "process 12345 has not reported progress for 100 s" in status.message


def test_a_job_on_another_machine_runs_as_long_as_it_speaks(directory: JobDirectory) -> None:
    write_progress(directory, sample_progress(host="elsewhere"))
    assert (job_status(directory).state, job_status(directory).running) == ("running", True)
    write_progress(directory, sample_progress(host="elsewhere", timestamp=time.time() - 100))
    assert (job_status(directory).state, job_status(directory).running) == ("killed", False)


@pytest.mark.parametrize("state", [JobState.STOPPED, JobState.FAILED, JobState.CANCELLED])
def test_a_job_that_ended_early_says_why_and_how_to_go_on(directory: JobDirectory, state: JobState) -> None:
    write_progress(directory, sample_progress(state, message="the disk is full"))
    status = job_status(directory)
    assert (status.state, status.running) == (str(state), False)
    assert status.message == f"the disk is full; resume with: inflight batch resume {directory.path}"


def test_a_job_that_finishes_what_is_in_flight_says_so_until_it_has_ended(tmp_path: Path) -> None:
    job = job_of(tmp_path, ("stuck",))
    directory, reports = JobDirectory.from_output(job.output), list[JobProgress]()

    async def stuck(server: ScriptedBackend, prompt: str) -> str:
        await asyncio.sleep(600)
        return prompt

    runner = JobRunner(job, directory, reports.append, backends=[ScriptedBackend(stuck)])
    thread = threading.Thread(target=runner.run)
    thread.start()
    wait_until(lambda: any(progress.in_flight for progress in reports))
    runner.stop()
    wait_until(lambda: reports[-1].state is JobState.DRAINING)
    status = job_status(directory)
    assert (status.state, status.running, status.message) == ("draining", True, INTERRUPTED)
    runner.stop()
    thread.join(60)
    assert reports[-1].state is JobState.STOPPED
    assert [progress.state for progress in reports].count(JobState.STOPPED) == 1, "a line is said at each change"
    assert job_status(directory).state == "stopped"


def test_a_finished_job_names_its_summary(tmp_path: Path) -> None:
    directory, _ = run(job_of(tmp_path, ("tea",)))
    status = job_status(directory)
    assert (status.state, status.message) == ("finished", f"its summary is {directory.summary}")
    assert status.as_dict()["fraction_done"] == 1.0


def test_jobs_of_a_folder(directory: JobDirectory, tmp_path: Path) -> None:
    shutil.copytree(directory.path, tmp_path / "more.job")
    (tmp_path / "empty.job").mkdir()
    assert [job.path.name for job in find_jobs(tmp_path)] == ["answers.job", "more.job"]
    with raises(BatchError, "job_not_found", naming="empty.job"):
        find_jobs(tmp_path / "empty.job")
