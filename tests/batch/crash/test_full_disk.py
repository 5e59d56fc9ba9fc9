"""A disk without room stops a job, and loses nothing: once there is room the job goes on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflight.deploy.server.server import Server
from tests.batch.crash.job_processes import JobProcesses
from tests.batch.crash.jobs import check_whole, write_rows

ROWS = 300
ENDED, STOPPED = 3, 75
POINTS = ("lines.written:3", "commit:9")
MORE_POINTS = [
    pytest.param(point, marks=pytest.mark.slow) for point in ("lines.write:2", "lines.synced:1", "job.json.rename:1")
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
    ids = write_rows(tmp_path / "rows.jsonl", ROWS)
    asked = ("--id", "id", "--max-tokens", "4", "--server", paced_server.grpc_address, "--checkpoint-seconds", "0.05")
    undisturbed, out = tmp_path / "undisturbed.jsonl", small_disk / "answers.jsonl"
    assert lives.run("run", tmp_path / "rows.jsonl", "--out", undisturbed, *asked).wait() == ENDED
    filling = small_disk / "filling"
    filling.write_bytes(b"x" * 150_000)
    life = lives.run("run", tmp_path / "rows.jsonl", "--out", out, *asked)
    assert life.wait() == STOPPED, life.said
    assert "[disk_full]" in life.said
    assert "Traceback" not in life.said
    again = lives.run("resume", out)
    assert again.wait() == STOPPED, again.said
    filling.unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    assert lives.run("resume", out).wait() == ENDED
    check_whole(out, undisturbed, ids, ROWS)


@pytest.mark.parametrize("point", [*POINTS, *MORE_POINTS])
def test_wherever_the_disk_is_full_a_job_stops_and_goes_on(
    point: str, lives: JobProcesses, paced_server: Server, tmp_path: Path
) -> None:
    ids = write_rows(tmp_path / "rows.jsonl", 60)
    asked = ("--id", "id", "--max-tokens", "4", "--server", paced_server.grpc_address, "--checkpoint-seconds", "0.03")
    undisturbed, out = tmp_path / "undisturbed.jsonl", tmp_path / "answers.jsonl"
    assert lives.run("run", tmp_path / "rows.jsonl", "--out", undisturbed, *asked).wait() == ENDED
    life = lives.run("run", tmp_path / "rows.jsonl", "--out", out, *asked, failpoint=f"{point}:full")
    assert life.wait() == STOPPED, life.said
    assert "[disk_full]" in life.said
    assert lives.run("run", tmp_path / "rows.jsonl", "--out", out, *asked).wait() == ENDED
    check_whole(out, undisturbed, ids, 60)


@pytest.mark.slow
def test_a_limit_of_a_files_length_stops_a_job_as_a_full_disk_does(
    lives: JobProcesses, paced_server: Server, tmp_path: Path
) -> None:
    ids = write_rows(tmp_path / "rows.jsonl", ROWS)
    asked = ("--id", "id", "--max-tokens", "4", "--server", paced_server.grpc_address, "--checkpoint-seconds", "0.05")
    undisturbed, out = tmp_path / "undisturbed.jsonl", tmp_path / "answers.jsonl"
    assert lives.run("run", tmp_path / "rows.jsonl", "--out", undisturbed, *asked).wait() == ENDED
    life = lives.start("run", tmp_path / "rows.jsonl", "--out", out, *asked, file_size=150_000)
    assert life.wait() in (1, STOPPED), life.said  # SQLite says no more of it than that it can't write
    assert "Resume with: inflight batch resume" in life.said
    assert "Traceback" not in life.said
    assert lives.run("resume", out).wait() == ENDED
    check_whole(out, undisturbed, ids, ROWS)
