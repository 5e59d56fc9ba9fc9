"""A process of the load, its parent or the server is killed: nothing hangs or goes on alone, and the records say it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from loadtests.analysis.summarize import summarize
from loadtests.plan import Arrivals, LoadPlan
from loadtests.record import RequestOutcome
from loadtests.run_directory import RunDirectory
from loadtests.workloads.spec import WorkloadSpec
from tests.fixtures.engines import TinyEngine
from tests.fixtures.load_generator import TIMEOUT, generator_command, has_reported, running_generator
from tests.fixtures.load_runs import read_records
from tests.fixtures.ports import free_port
from tests.fixtures.server import STEP_SECONDS, fake_engine
from tests.fixtures.waiting import wait_until

SHORT = WorkloadSpec(input_tokens="6", output_tokens="4")
SECONDS = 6.0
"""Of a run that goes on to its end, long enough for a slow machine to kill one of its processes well before that."""
LONG = 600.0
"""Seconds of a run that no test sees the end of."""


@dataclass(frozen=True)
class RunningLoad:
    directory: RunDirectory
    process: subprocess.Popen[bytes]
    workers: int

    def wait_for_records(self) -> None:
        wait_until(lambda: has_reported(self.directory, self.workers), "a record of each process")

    def process_tree(self) -> list[psutil.Process]:
        """The process and those that it started."""
        return [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]


@contextmanager
def running(server: Server, place: Path, seconds: float, workers: int, through: str = "") -> Iterator[RunningLoad]:
    """A closed loop; `through`: by a separate process, as a user starts a run."""
    plan = LoadPlan(
        server=server.grpc_address,
        workload=SHORT,
        arrivals=Arrivals(kind="users", profile="4", pause=0.1),
        seconds=seconds,
        drain_seconds=1.0,
    )
    directory = RunDirectory.create(place / "run")
    command = generator_command(directory, plan, workers)
    if through:
        command = [sys.executable, "-c", through, *command]
    with running_generator(command, place / "said") as process:
        yield RunningLoad(directory, process, workers)


@pytest.mark.slow
def test_a_run_goes_on_without_a_worker_that_was_killed_and_says_so(paced_server: Server, tmp_path: Path) -> None:
    with running(paced_server, tmp_path, SECONDS, workers=2) as run:
        run.wait_for_records()
        victim = run.process_tree()[-1]
        victim.kill()
        assert run.process.wait(TIMEOUT) == 0, (tmp_path / "said").read_text()
    records = read_records(run.directory)
    (lost,) = {int(sample["worker"]) for sample in run.directory.generator_samples() if sample.get("lost")}
    assert {record.worker for record in records} == {0, 1}
    assert {record.outcome for record in records if record.worker != lost} == {RequestOutcome.COMPLETED}
    last = {worker: max(record.due for record in records if record.worker == worker) for worker in (0, 1)}
    assert last[1 - lost] > SECONDS - 1 > last[lost]
    reasons = " ".join(summarize(run.directory).validity.reasons)
    assert f"process {lost} of the load generator was lost" in reasons


def test_workers_end_with_their_master(paced_server: Server, tmp_path: Path) -> None:
    with running(paced_server, tmp_path, LONG, workers=2) as run:
        run.wait_for_records()
        master, *workers = run.process_tree()
        assert len(workers) == 2
        master.kill()
        assert psutil.wait_procs(workers, TIMEOUT)[1] == []
    reasons = summarize(run.directory).validity.reasons
    assert any("s early" in reason for reason in reasons)


def test_a_run_ends_with_the_process_that_asked_for_it(paced_server: Server, tmp_path: Path) -> None:
    through = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    with running(paced_server, tmp_path, LONG, workers=1, through=through) as run:
        run.wait_for_records()
        asker, generator = run.process_tree()
        asker.kill()
        assert psutil.wait_procs([generator], TIMEOUT)[1] == []
    # It reported what was in flight, as at any other end.
    records = read_records(run.directory)
    last = run.directory.generator_samples()[-1]
    assert len(records) == last["sent"]
    assert last["open"] == 0


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_sigterm_ends_a_run_and_all_is_told(workers: int, paced_server: Server, tmp_path: Path) -> None:
    with running(paced_server, tmp_path, LONG, workers) as run:
        run.wait_for_records()
        family = run.process_tree()
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(TIMEOUT) == 0, (tmp_path / "said").read_text()
        assert psutil.wait_procs(family[1:], TIMEOUT)[1] == []
    records = read_records(run.directory)
    told = {sample["worker"]: sample["sent"] for sample in run.directory.generator_samples()}
    assert len(records) == sum(told.values())
    assert {record.outcome for record in records} <= {RequestOutcome.COMPLETED, RequestOutcome.UNFINISHED}


def test_the_plan_waits_for_workers_that_do_not_handle_messages_yet(paced_server: Server, tmp_path: Path) -> None:
    master = f"127.0.0.1:{free_port()}"
    slow = (
        "import sys; from loadtests.generator import main; import gevent; worker = main.WorkerLoadTest\n"
        "main.WorkerLoadTest = lambda environment: (gevent.sleep(1.5), worker(environment))\n"
        "main.run_worker(sys.argv[1])\n"
    )
    directory = RunDirectory.create(tmp_path / "run")
    plan = LoadPlan(server=paced_server.grpc_address, seconds=LONG, workload=SHORT)
    command = [*generator_command(directory, plan, 0), "--expected=1", f"--bind={master}"]
    with running_generator(command, tmp_path / "out") as process:
        worker = subprocess.Popen([sys.executable, "-c", slow, master])
        try:
            wait_until(lambda: has_reported(directory), "a record of the worker")
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT) == 0
        finally:
            worker.kill()
            worker.wait()


@pytest.mark.slow
def test_a_server_that_is_killed_is_in_the_records_and_the_run_goes_on(tiny_engine: TinyEngine, tmp_path: Path) -> None:
    options = DeploymentOptions(parameters=fake_engine(step_seconds=STEP_SECONDS))
    with Server(tiny_engine("llama"), options) as server:
        plan = LoadPlan(
            server=server.grpc_address,
            workload=WorkloadSpec(input_tokens="6", output_tokens="20"),
            arrivals=Arrivals(kind="rate", profile="10", process="constant"),
            seconds=8.0,
            drain_seconds=2.0,
        )
        directory = RunDirectory.create(tmp_path / "run")
        with running_generator(generator_command(directory, plan), tmp_path / "said") as process:
            wait_until(lambda: has_reported(directory), "a record")
            os.kill(server.pid, signal.SIGKILL)
            assert process.wait(TIMEOUT) == 0, (tmp_path / "said").read_text()
    records = read_records(directory)
    assert len(records) == 80
    codes = {record.code for record in records if record.outcome is RequestOutcome.FAILED}
    assert "server_gone" in codes
    assert codes <= {"server_gone", "server_unreachable", "server_not_ready"}
    assert {record.outcome for record in records} <= {
        RequestOutcome.COMPLETED,
        RequestOutcome.FAILED,
        RequestOutcome.UNFINISHED,
    }
    summary = summarize(directory)
    assert summary.requests.errors["server_gone"] > 0
    assert 0 < summary.requests.error_rate < 1
