"""A job at servers of OpenAI's protocol, killed like its servers: each row has one record, the one of a quiet run."""

from __future__ import annotations

import random
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from inflight.batch.job.directory import JobDirectory
from inflight.batch.reporting.manifest import JobManifest
from tests.batch.crash.job_processes import JobProcesses
from tests.batch.crash.jobs import DisturbedJob
from tests.standins.openai_servers import Fault, openai_server

ROWS = 120
_FAULTS = (None, Fault("status", 429, {"retry-after": "0"}), None, Fault("status", 529), None, Fault("cut"))


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_a_job_and_its_servers_are_killed(lives: JobProcesses, tmp_path: Path, kills: int) -> None:
    """With copies, and rows that a larger model refines."""
    draw = random.Random(kills)
    options = (
        "--temperature",
        "0",
        "--refine-when",
        "regex:milk",
        "--concurrency",
        "2",
        "--checkpoint-seconds",
        "0.05",
    )
    with ExitStack() as stack:
        small, large = (stack.enter_context(openai_server("vllm", (name,), delay=0.01)) for name in ("small", "large"))
        job = DisturbedJob(lives, small.address, tmp_path, ROWS, *options, "--refine-with", large.address)
        servers = stack.enter_context(ExitStack())
        address = small.address
        for number in range(kills):
            life = (
                job.start("--server", address) if number == 0 else lives.start("resume", job.out, "--server", address)
            )
            life.ended.wait(draw.uniform(0.2, 0.6))
            if number % 2:  # the server ends first, in the middle of answers
                servers.close()
                life.ended.wait(0.2)
                life.send(signal.SIGKILL)
                faults = [draw.choice(_FAULTS) for _ in range(30)]
                address = servers.enter_context(openai_server("vllm", ("small",), faults=faults, delay=0.01)).address
            life.send(signal.SIGKILL)
            life.wait()
        assert job.resume("--server", address, "--concurrency", "64").wait() == 3
    job.check_whole()
    manifest = JobManifest.model_validate_json(JobDirectory.find(job.out).manifest.read_bytes())
    assert manifest.rows.refined > 0
    assert manifest.times.runs > 1
