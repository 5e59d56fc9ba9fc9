"""What a power cut leaves behind: files that are longer than the state says, a log of the state that ends early."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.deploy.server.server import Server
from tests.batch.crash.job_processes import JobProcesses
from tests.batch.crash.jobs import ENDED, DisturbedJob


@pytest.fixture(scope="module")
def cut(lives: JobProcesses, paced_server: Server, tmp_path_factory: pytest.TempPathFactory) -> DisturbedJob:
    """A job that died in a later checkpoint than its first: each writes to at most three files. Few rows in flight let
    it last, however slow the disk is."""
    options = ("--max-tokens", "4", "--order", "arrival", "--checkpoint-seconds", "0.05", "--concurrency", "8")
    job = DisturbedJob(lives, paced_server.grpc_address, tmp_path_factory.mktemp("cut"), 150, *options)
    assert job.start(failpoint="lines.write:4:kill").wait() == -9
    return job


def garbage(directory: JobDirectory) -> None:
    for kind in RowStatus:
        with directory.result_file(kind).open("ab") as file:
            file.write(random.Random(1).randbytes(10_000) + b"\x00" * 512)


def half_a_line(directory: JobDirectory) -> None:
    path = directory.result_file(RowStatus.OK)
    line = path.read_bytes().splitlines(keepends=True)[0]
    with path.open("ab") as file:
        file.write(line * 3 + line[: len(line) // 2])


def short_log(directory: JobDirectory) -> None:
    """Its last third was never on the disk; so the files of lines are longer than what is left of the state says."""
    log = directory.state.with_name("state.db-wal")
    assert log.stat().st_size > 0
    os.truncate(log, log.stat().st_size * 2 // 3)


@pytest.mark.parametrize("tear", [garbage, half_a_line, short_log])
def test_what_no_commit_speaks_of_is_cut_off(cut: DisturbedJob, tear: Callable[[JobDirectory], None]) -> None:
    directory = JobDirectory.find(cut.out)
    kept = {
        path: path.read_bytes()
        for path in (*directory.path.glob("*"), *directory.result_files().values())
        if path.is_file()
    }
    tear(directory)
    resumed = cut.resume("--checkpoint-seconds", "0.05")
    assert resumed.wait() == ENDED, resumed.said
    cut.check_whole()
    for path in directory.path.glob("*"):
        path.unlink()
    for path, content in kept.items():
        path.write_bytes(content)
