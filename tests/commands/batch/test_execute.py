"""A job whose terminal closes, or whose output is no longer read."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from inflight.batch.job.counts import Counts
from inflight.batch.job.directory import JobDirectory
from inflight.batch.reporting.progress import JobState
from inflight.batch.reporting.status import job_status, resume_command
from inflight.batch.runner import JobResult
from inflight.batch.signals import INTERRUPTED
from inflight.commands.batch import execute
from tests.batch.sample_jobs import job_of
from tests.fixtures.waiting import wait_until

_PROGRAM = """
import asyncio, functools, signal, sys
from pathlib import Path
from inflight import cli
from inflight.batch.runner import JobRunner
from inflight.commands.batch import execute
from tests.batch.scripted_backend import ScriptedBackend

async def slowly(server, prompt):
    await asyncio.sleep(float(prompt))
    return prompt

words = sys.argv[1:]
if "nohup" in words:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
execute._runner_class = lambda job: functools.partial(JobRunner, backends=[ScriptedBackend(slowly)])
options = ["--id", "id", "--out", "answers.jsonl", "--concurrency", "2", "--drain-seconds", "30"]
cli.main(["batch", "run", "rows.jsonl", *options, *(word for word in words if word.startswith("--"))])
"""


class Started:
    """`inflight batch run` of rows that say for how many seconds they are asked."""

    def __init__(self, folder: Path, *seconds: float, words: Sequence[str] = ()) -> None:
        self.directory = JobDirectory.from_output(job_of(folder, [str(pause) for pause in seconds]).output)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *words],
            cwd=folder,
            env={"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def asked(self) -> bool:
        progress = self.directory.progress
        return progress.exists() and json.loads(progress.read_text())["in_flight"] == 2

    def close_output(self) -> None:
        """As `tee` does that Ctrl-C has ended."""
        assert self.process.stdout is not None
        self.process.stdout.close()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.close_output()


@pytest.fixture
def started(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Started]:
    seconds, *words = request.param
    job = Started(tmp_path, *seconds, words=words)
    yield job
    job.end()


@pytest.mark.parametrize("started", [((2.0, 60.0, 60.0),)], indirect=True)
def test_a_job_whose_output_nobody_reads_drains_and_stops_all_the_same(started: Started) -> None:
    wait_until(started.asked)
    started.close_output()
    started.process.send_signal(signal.SIGINT)
    wait_until(lambda: job_status(started.directory).state == "draining")
    started.process.send_signal(signal.SIGINT)
    assert started.process.wait(30) == 75
    status = job_status(started.directory)
    assert (status.state, status.running) == ("stopped", False)


@pytest.mark.parametrize("started", [((60.0, 60.0),)], indirect=True)
def test_an_interrupted_job_says_once_why_it_stopped_and_how_to_resume_it(started: Started) -> None:
    wait_until(started.asked)
    for _ in range(2):
        started.process.send_signal(signal.SIGINT)
        wait_until(lambda: job_status(started.directory).state in ("draining", "stopped"))
    assert started.process.stdout is not None
    output = started.process.stdout.read().decode()
    assert started.process.wait(30) == 75
    assert output.startswith(f"Job directory: {started.directory.path}\n")
    assert output.endswith(f"Stopped: {INTERRUPTED}\nResume with: inflight batch resume {started.directory.path}\n")
    assert (output.count(INTERRUPTED), output.count("esume")) == (1, 2)


def test_the_screen_comes_before_what_it_takes_to_ask_a_server() -> None:
    program = "import sys, inflight.commands.batch.run; print({'grpc', 'tritonclient', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("started", [((2.0, 0.0), "nohup")], indirect=True)
def test_a_job_without_hangups_goes_on_when_the_terminal_goes(started: Started) -> None:
    wait_until(lambda: started.directory.progress.exists())
    started.process.send_signal(signal.SIGHUP)
    started.close_output()
    assert started.process.wait(30) == 0
    assert job_status(started.directory).state == "finished"


@pytest.mark.parametrize("started", [((0, 0), "--quiet")], indirect=True)
def test_a_quiet_job_that_finishes_prints_nothing(started: Started) -> None:
    assert started.process.wait() == 0
    assert started.process.stdout is not None
    assert started.process.stdout.read() == b""


@pytest.mark.parametrize(
    ("state", "code", "option"),
    [
        (JobState.FAILED, "model_not_found", " --model NAME"),
        (JobState.FAILED, "unsupported_deployment", " --server ADDRESS"),
        (JobState.FAILED, "job_failed", ""),
        (JobState.STOPPED, "server_unreachable", ""),
    ],
)
def test_a_mistake_is_not_to_be_repeated(tmp_path: Path, state: JobState, code: str, option: str) -> None:
    directory = JobDirectory(tmp_path)
    (tmp_path / "job.json").touch()
    *_, last = execute.end_messages(JobResult(state, Counts(), "it is so", code), directory)
    assert last.endswith(f"{resume_command(directory)}{option}")
    assert last.startswith("Correct") is bool(option)
