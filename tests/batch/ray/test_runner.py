"""A job whose parts run on workers of a real Ray on this machine, with two real servers, whatever dies of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.verify.checker import verify
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.batch.outputs.shop import Shop
from tests.client.support.encoder_server import EncoderServer
from tests.client.support.scripted_encoder import DIMENSIONS
from tests.fixtures.engines import TinyEngine
from tests.fixtures.postgresql import PostgreSql
from tests.fixtures.server import STEP_SECONDS, fake_engine
from tests.fixtures.waiting import wait_until

ROWS = 96
TOKENS = 12
RAY = ("--runner", "ray", "--workers", "2", "--concurrency", "2")
INFLIGHT = str(Path(sys.executable).with_name("inflight"))


@pytest.fixture(scope="module")
def servers(paced_server: Server, tiny_engine: TinyEngine) -> Iterator[tuple[str, str]]:
    options = DeploymentOptions(parameters=fake_engine(step_seconds=STEP_SECONDS))
    with Server(tiny_engine("llama"), options) as second:
        yield paced_server.grpc_address, second.grpc_address


class Jobs:
    """Commands over one input, in which an id of one part comes again in another."""

    def __init__(self, place: Path, servers: tuple[str, str]) -> None:
        self.place, self._servers = place, servers
        self._started: list[subprocess.Popen[str]] = []
        rows = [{"id": f"row-{number % 90}", "prompt": f"Tell me about {number}."} for number in range(ROWS)]
        self.input = place / "in.jsonl"
        self.input.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def start(self, name: str, *options: str, **variables: str) -> subprocess.Popen[str]:
        asked = [part for server in self._servers for part in ("--server", server)]
        limits = ("--id", "id", "--max-tokens", str(TOKENS), "--concurrency", "2", "--drain-seconds", "1")
        command = (INFLIGHT, "batch", "run", str(self.input), "--out", str(self.place / name), *asked, *limits)
        environment = {**os.environ, **variables}
        job = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self._started.append(job)
        return job

    def end(self) -> None:
        for job in self._started:
            with job:
                job.kill()

    def run(self, name: str, *options: str) -> None:
        job = self.start(name, *options)
        output, _ = job.communicate()
        assert job.returncode == 3, output  # the ids that came again

    def lines(self, name: str) -> dict[RowStatus, bytes]:
        directory = JobDirectory.find(self.place / name)
        return {kind: directory.result_file(kind).read_bytes() for kind in (RowStatus.OK, RowStatus.DEAD)}


@pytest.fixture
def jobs(tmp_path: Path, servers: tuple[str, str]) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path, servers)
    yield jobs
    jobs.end()


def living_part(head: subprocess.Popen[str], job: Path, done: int = 4) -> dict[str, Any]:
    """What a part says that has answered so many rows and has not ended."""
    running: list[dict[str, Any]] = []

    def look() -> bool:
        assert head.poll() is None, head.communicate()[0]
        for path in job.glob("parts/*.job/progress.json"):
            progress = json.loads(path.read_text())
            if progress["state"] == "running" and progress["counts"]["ok"] >= done:
                running.append(progress)
        return bool(running)

    wait_until(look)
    return running[0]


@pytest.mark.timeout(600)
def test_a_killed_worker_s_part_goes_on_elsewhere(jobs: Jobs, poisoned: Callable[[], str]) -> None:
    """The files are those of a job without Ray, byte for byte, and nothing ran of the current directory."""
    jobs.run("local.jsonl")
    head = jobs.start("ray.jsonl", *RAY)
    part = living_part(head, jobs.place / "ray.job")
    os.kill(part["pid"], signal.SIGKILL)

    def again() -> bool:
        lives = [json.loads(path.read_text()) for path in (jobs.place / "ray.job").glob("parts/*.job/progress.json")]
        return any(progress["counts"]["runs"] == 2 and progress["pid"] != part["pid"] for progress in lives)

    wait_until(again)
    output, _ = head.communicate()
    assert head.returncode == 3, output
    assert jobs.lines("ray.jsonl") == jobs.lines("local.jsonl")
    assert verify(JobDirectory.find(jobs.place / "ray.jsonl")).complete
    assert poisoned() == ""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_embeddings_of_parts_fill_a_table_that_fits_them(
    scripted_encoders: EncoderServer, postgresql: PostgreSql, tmp_path: Path
) -> None:
    """A column of another size is found before a row is sent; the same job goes on once it fits."""
    source = tmp_path / "docs.jsonl"
    source.write_text("".join(json.dumps({"id": n, "text": f"text {n}"}) + "\n" for n in range(100)))
    shop = Shop(postgresql.database())
    command = [
        *(INFLIGHT, "batch", "run", str(source), "--task", "embed", "--id", "id", "--out", shop.address),
        *("--output-table", "docs", "--column", "embedding", "--job", str(tmp_path / "docs.job")),
        *("--server", scripted_encoders.grpc_address, "--runner", "ray", "--workers", "2"),
    ]
    shop.do("CREATE EXTENSION vector", "CREATE TABLE docs (id BIGINT PRIMARY KEY, embedding vector(5))")
    refused = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert (refused.returncode, "vector(5)" in refused.stdout) == (1, True), refused.stdout
    parts = (tmp_path / "docs.job").glob("parts/*.job/progress.json")
    assert sum(json.loads(path.read_text())["counts"]["ok"] for path in parts) == 0
    shop.do(f"ALTER TABLE docs ALTER embedding TYPE vector({DIMENSIONS})")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    assert shop.rows("SELECT count(*), count(embedding) FROM docs") == [(100, 100)]
    shop.close()


@pytest.mark.slow
def test_a_head_that_is_told_to_stop_or_killed_is_gone_on_with(jobs: Jobs) -> None:
    jobs.run("local.jsonl")
    stopped = jobs.start("ray.jsonl", *RAY)
    living_part(stopped, jobs.place / "ray.job")
    stopped.terminate()
    output, _ = stopped.communicate()
    assert stopped.returncode == 75, output

    killed = jobs.start("ray.jsonl", *RAY)
    living_part(killed, jobs.place / "ray.job", done=8)
    family = psutil.Process(killed.pid).children(recursive=True)
    assert family
    killed.kill()
    killed.communicate()
    jobs.run("ray.jsonl", *RAY)
    assert jobs.lines("ray.jsonl") == jobs.lines("local.jsonl")
    wait_until(
        lambda: not any(process.is_running() for process in family)
    )  # Ray's agents take a minute to see that it is gone


@pytest.mark.slow
def test_a_part_that_no_worker_survives_ends_the_job(jobs: Jobs) -> None:
    head = jobs.start("ray.jsonl", *RAY, INFLIGHT_FAILPOINT="lines.write:1:kill")
    output, _ = head.communicate()
    assert head.returncode == 1, output
    assert "workers died while running the part at" in output, output
    jobs.run("ray.jsonl", *RAY)


@pytest.mark.slow
def test_a_cancelled_job_ends_its_parts_and_keeps_what_they_have(jobs: Jobs) -> None:
    head = jobs.start("ray.jsonl", *RAY)
    living_part(head, jobs.place / "ray.job")
    JobDirectory.find(jobs.place / "ray.jsonl").cancel.touch()
    output, _ = head.communicate()
    assert head.returncode == 4, output
    parts = (jobs.place / "ray.job").glob("parts/*.job/progress.json")
    assert sum(json.loads(path.read_text())["counts"]["ok"] for path in parts) >= 4
