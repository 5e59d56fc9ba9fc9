"""How a job stands, as another process sees it."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
import time
from pathlib import Path

import pytest

from inflight.batch.errors import BatchError
from inflight.batch.job_directory import JobDirectory
from inflight.batch.runner import Runner
from inflight.batch.seen.progress import Progress, State, write_progress
from inflight.batch.seen.standing import jobs_in, standing
from inflight.batch.signals import INTERRUPTED
from tests.batch.crash.lives import until
from tests.batch.flow.scripted import Scripted
from tests.batch.seen.jobs import job_of, run
from tests.batch.seen.moments import moment


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    """A job that has not said anything."""
    job = job_of(tmp_path, ("tea",))
    directory = JobDirectory.of(job.output)
    directory.path.mkdir()
    directory.write_job(job)
    return directory


def test_a_job_whose_process_is_gone_without_a_word_was_killed(directory: JobDirectory) -> None:
    write_progress(directory, moment(host=socket.gethostname()))
    found = standing(directory)
    assert (found.state, found.running) == ("killed", False)
    assert found.sentence.endswith(f"resume with: inflight batch resume {directory.path}")


def test_before_its_first_word_a_job_begins_or_was_killed(directory: JobDirectory) -> None:
    with directory.locked():
        found = standing(directory)
        assert (found.state, found.running) == ("beginning", True)
    found = standing(directory)
    assert (found.state, found.running) == ("killed", False)
    assert "inflight batch resume" in found.sentence


def test_while_the_lock_is_held_the_progress_is_believed(directory: JobDirectory) -> None:
    with directory.locked():
        write_progress(directory, moment(State.WAITING))
        assert standing(directory).state == "waiting for a server"
        write_progress(directory, moment(State.STOPPED, sentence=INTERRUPTED))
        assert standing(directory).state == "beginning", "what an earlier life has left"
        write_progress(directory, moment(when=time.time() - 100))
        found = standing(directory)
        assert (found.state, found.running) == ("running", True)
        assert "process 12345 has said nothing for 100 s" in found.sentence


def test_a_job_on_another_machine_runs_as_long_as_it_speaks(directory: JobDirectory) -> None:
    write_progress(directory, moment(host="elsewhere"))
    assert (standing(directory).state, standing(directory).running) == ("running", True)
    write_progress(directory, moment(host="elsewhere", when=time.time() - 100))
    assert (standing(directory).state, standing(directory).running) == ("killed", False)


@pytest.mark.parametrize("state", [State.STOPPED, State.FAILED, State.CANCELLED])
def test_a_job_that_ended_early_says_why_and_how_to_go_on(directory: JobDirectory, state: State) -> None:
    write_progress(directory, moment(state, sentence="the disk is full"))
    found = standing(directory)
    assert (found.state, found.running) == (str(state), False)
    assert found.sentence == f"the disk is full; resume with: inflight batch resume {directory.path}"


def test_a_job_that_finishes_what_is_in_flight_says_so_until_it_has_ended(tmp_path: Path) -> None:
    job = job_of(tmp_path, ("stuck",))
    directory, told = JobDirectory.of(job.output), list[Progress]()

    async def stuck(server: Scripted, prompt: str) -> str:
        await asyncio.sleep(600)
        return prompt

    runner = Runner(job, directory, told.append, backends=[Scripted(stuck)])
    thread = threading.Thread(target=runner.run)
    thread.start()
    until(lambda: any(progress.in_flight for progress in told))
    runner.stop()
    until(lambda: told[-1].state is State.DRAINING)
    found = standing(directory)
    assert (found.state, found.running, found.sentence) == ("draining", True, INTERRUPTED)
    runner.stop()
    thread.join(60)
    assert told[-1].state is State.STOPPED
    assert [progress.state for progress in told].count(State.STOPPED) == 1, "a line is said at each change"
    assert standing(directory).state == "stopped"


def test_a_finished_job_names_its_summary(tmp_path: Path) -> None:
    directory, _ = run(job_of(tmp_path, ("tea",)))
    found = standing(directory)
    assert (found.state, found.sentence) == ("finished", f"its summary is {directory.summary}")
    assert found.values()["done"] == 1.0


def test_jobs_of_a_folder(directory: JobDirectory, tmp_path: Path) -> None:
    shutil.copytree(directory.path, tmp_path / "more.job")
    (tmp_path / "empty.job").mkdir()
    assert [found.path.name for found in jobs_in(tmp_path)] == ["answers.job", "more.job"]
    with pytest.raises(BatchError, match="there is no job in") as raised:
        jobs_in(tmp_path / "empty.job")
    assert raised.value.code == "job_not_found"
