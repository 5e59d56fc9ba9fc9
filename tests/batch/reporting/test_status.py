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
from tests.batch.sample_jobs import created, job_of, run
from tests.batch.scripted_backend import ScriptedBackend
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    """A job that has not said anything."""
    return created(job_of(tmp_path, ("tea",)))


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


HERE, RESUME = socket.gethostname(), "; resume with: inflight batch resume {}"


@pytest.mark.parametrize(
    ("state", "host", "age", "shown", "message"),
    [
        (JobState.RUNNING, HERE, 0, "killed", RESUME),
        (JobState.RUNNING, "elsewhere", 0, "running", "full disk"),
        (JobState.RUNNING, "elsewhere", 100, "killed", RESUME),
        *((each, HERE, 0, str(each), f"full disk{RESUME}") for each in (JobState.STOPPED, JobState.FAILED)),
        (JobState.CANCELLED, HERE, 0, "cancelled", f"full disk{RESUME}"),
    ],
)
def test_a_job_that_does_not_run_here_is_as_it_was_last_seen(
    directory: JobDirectory, state: JobState, host: str, age: float, shown: str, message: str
) -> None:
    progress = sample_progress(state, host=host, timestamp=time.time() - age, message="full disk")
    write_progress(directory, progress)
    status = job_status(directory)
    assert (status.state, status.running) == (shown, shown == "running")
    assert status.message.endswith(message.format(directory.path))


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
