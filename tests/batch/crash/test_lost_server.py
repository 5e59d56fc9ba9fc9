"""A server that dies, and a network that breaks, while a job runs: the job waits, and goes on."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.batch.crash.job_processes import JobProcesses
from tests.batch.crash.jobs import ENDED, DisturbedJob
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import fake_engine
from tests.fixtures.waiting import wait_until
from tests.standins.faulty_network.proxy import Faults, FaultyNetwork
from tests.standins.faulty_network.toxics import CutAt

ROWS = 300
OPTIONS = ("--max-tokens", "8", "--checkpoint-seconds", "0.05", "--concurrency", "16", "--order", "arrival")


def answers(job: DisturbedJob) -> int:
    """Lines written so far."""
    return job.out.read_bytes().count(b"\n") if job.out.exists() else 0


def engine_of(server: Server) -> psutil.Process:
    processes = psutil.Process(server.pid).children(recursive=True)
    return next(process for process in processes if "inflight.runtime.engine.worker" in " ".join(process.cmdline()))


def test_a_job_outlives_the_death_of_its_engine_and_of_its_server(
    lives: JobProcesses, tiny_engine: TinyEngine, tmp_path: Path
) -> None:
    options = DeploymentOptions(parameters=fake_engine(step_seconds=0.02))
    with Server(tiny_engine("llama"), options) as server:
        job = DisturbedJob(lives, server.grpc_address, tmp_path, ROWS, *OPTIONS)
        life = job.start()
        wait_until(lambda: answers(job) > 50)
        engine_of(server).kill()
        before = answers(job)
        wait_until(lambda: answers(job) > before + 40)
        psutil.Process(server.pid).kill()
        assert life.wait() == ENDED, life.said
        assert server.restarts >= 1
    job.check_whole()


@pytest.mark.slow
def test_a_job_outlives_a_network_that_breaks(lives: JobProcesses, paced_server: Server, tmp_path: Path) -> None:
    job = DisturbedJob(lives, paced_server.grpc_address, tmp_path, ROWS, *OPTIONS)
    with FaultyNetwork(paced_server.grpc_address) as network:
        job.address = network.address
        life = job.start()
        for number in range(4):
            before = answers(job)
            wait_until(lambda: answers(job) > before + 30)  # noqa: B023  it is over before the next turn
            if number == 2:
                network.refuse()
            network.disturb(Faults(down=(CutAt(0, "rst" if number % 2 else "fin"),)))
            if number == 2:
                wait_until(lambda: "does not answer" in life.said)
                network.listen()
        assert life.wait() == ENDED, life.said
    job.check_whole()
    assert not JobDirectory.find(job.out).result_file(RowStatus.DEAD).read_bytes().count(b"row_crashed_engine")
