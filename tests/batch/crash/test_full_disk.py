"""A disk without room stops a job, and loses nothing: once there is room the job goes on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflight.deploy.server.server import Server
from tests.batch.crash.job_processes import JobProcesses
from tests.batch.crash.jobs import ENDED, STOPPED, DisturbedJob

ROWS = 300
OPTIONS = ("--max-tokens", "4", "--checkpoint-seconds", "0.03")
POINTS = ("commit:9",)
MORE_POINTS = [
    pytest.param(point, marks=pytest.mark.slow)
    for point in ("lines.write:2", "lines.written:3", "lines.synced:1", "job.json.rename:1")
]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 320 KiB, where one may be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=320k", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_stops_a_job_that_goes_on_once_there_is_room(
    lives: JobProcesses, paced_server: Server, small_disk: Path, tmp_path: Path
) -> None:
    job = DisturbedJob(lives, paced_server.grpc_address, tmp_path, ROWS, *OPTIONS)
    job.out = small_disk / "answers.jsonl"
    filling = small_disk / "filling"
    filling.write_bytes(b"x" * 150_000)
    life = job.start()
    assert life.wait() == STOPPED, life.said
    assert "[disk_full]" in life.said
    assert "Traceback" not in life.said
    again = job.resume()
    assert again.wait() == STOPPED, again.said
    filling.unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    assert job.resume().wait() == ENDED
    job.check_whole()


@pytest.mark.parametrize("point", [*POINTS, *MORE_POINTS])
def test_wherever_the_disk_is_full_a_job_stops_and_goes_on(
    point: str, lives: JobProcesses, paced_server: Server, tmp_path: Path
) -> None:
    job = DisturbedJob(lives, paced_server.grpc_address, tmp_path, 60, *OPTIONS)
    life = job.start(failpoint=f"{point}:full")
    assert life.wait() == STOPPED, life.said
    assert "[disk_full]" in life.said
    assert job.start().wait() == ENDED
    job.check_whole()


@pytest.mark.slow
def test_a_limit_of_a_files_length_stops_a_job_as_a_full_disk_does(
    lives: JobProcesses, paced_server: Server, tmp_path: Path
) -> None:
    job = DisturbedJob(lives, paced_server.grpc_address, tmp_path, ROWS, *OPTIONS)
    life = job.start(file_size=150_000)
    assert life.wait() in (1, STOPPED), life.said  # SQLite says no more of it than that it can't write
    assert "Resume with: inflight batch resume" in life.said
    assert "Traceback" not in life.said
    assert job.resume().wait() == ENDED
    job.check_whole()
