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
from tests.batch.crash.jobs import check_whole, write_rows
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import fake_engine
from tests.fixtures.waiting import wait_until
from tests.standins.faulty_network.proxy import Faults, FaultyNetwork
from tests.standins.faulty_network.toxics import CutAt

ROWS = 300
ENDED = 3


def asked(address: str) -> tuple[str, ...]:
    running = ("--checkpoint-seconds", "0.05", "--concurrency", "16", "--order", "arrival")
    return ("--id", "id", "--max-tokens", "8", "--server", address, *running)


def answers(out: Path) -> int:
    """Lines written so far."""
    return out.read_bytes().count(b"\n") if out.exists() else 0


def engine_of(server: Server) -> psutil.Process:
    processes = psutil.Process(server.pid).children(recursive=True)
    return next(one for one in processes if "inflight.runtime.engine.worker" in " ".join(one.cmdline()))


def undisturbed(lives: JobProcesses, address: str, tmp_path: Path) -> tuple[Path, list[str]]:
    ids = write_rows(tmp_path / "rows.jsonl", ROWS)
    out = tmp_path / "undisturbed.jsonl"
    assert lives.run("run", tmp_path / "rows.jsonl", "--out", out, *asked(address)).wait() == ENDED
    return out, ids


def test_a_job_outlives_the_death_of_its_engine_and_of_its_server(
    lives: JobProcesses, tiny_engine: TinyEngine, tmp_path: Path
) -> None:
    options = DeploymentOptions(parameters=fake_engine(step_seconds=0.02))
    with Server(tiny_engine("llama"), options) as server:
        wanted, ids = undisturbed(lives, server.grpc_address, tmp_path)
        out = tmp_path / "answers.jsonl"
        life = lives.start("run", tmp_path / "rows.jsonl", "--out", out, *asked(server.grpc_address))
        wait_until(lambda: answers(out) > 50)
        engine_of(server).kill()
        before = answers(out)
        wait_until(lambda: answers(out) > before + 40)
        psutil.Process(server.pid).kill()
        assert life.wait() == ENDED, life.said
        assert server.restarts >= 1
    check_whole(out, wanted, ids, ROWS)


@pytest.mark.slow
def test_a_job_outlives_a_network_that_breaks(lives: JobProcesses, paced_server: Server, tmp_path: Path) -> None:
    wanted, ids = undisturbed(lives, paced_server.grpc_address, tmp_path)
    out = tmp_path / "answers.jsonl"
    with FaultyNetwork(paced_server.grpc_address) as network:
        life = lives.start("run", tmp_path / "rows.jsonl", "--out", out, *asked(network.address))
        for number in range(4):
            before = answers(out)
            wait_until(lambda: answers(out) > before + 30)  # noqa: B023  it is over before the next turn
            if number == 2:
                network.refuse()
            network.disturb(Faults(down=(CutAt(0, "rst" if number % 2 else "fin"),)))
            if number == 2:
                wait_until(lambda: "does not answer" in life.said)
                network.listen()
        assert life.wait() == ENDED, life.said
    check_whole(out, wanted, ids, ROWS)
    assert not JobDirectory.find(out).result_file(RowStatus.DEAD).read_bytes().count(b"row_crashed_engine")
