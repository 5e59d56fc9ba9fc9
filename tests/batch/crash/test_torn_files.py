"""What a power cut leaves behind: files that are longer than the state says, a log of the state that ends early."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.deploy.server.server import Server
from tests.batch.crash.job_processes import JobProcesses
from tests.batch.crash.jobs import check_whole, write_rows

ROWS = 400
ENDED = 3


class TornFile:
    """A job that died on the way, and the same job without that."""

    def __init__(self, lives: JobProcesses, server: Server, directory: Path) -> None:
        self._lives, self._rows = lives, directory / "rows.jsonl"
        self.ids = write_rows(self._rows, ROWS)
        self.undisturbed, self.out = directory / "undisturbed.jsonl", directory / "answers.jsonl"
        self.running = ("--server", server.grpc_address, "--checkpoint-seconds", "0.05")
        assert self._run(self.undisturbed) == ENDED
        assert self._run(self.out, "lines.write:8:kill") == -9
        self.directory = JobDirectory.find(self.out)

    def _run(self, out: Path, failpoint: str = "") -> int:
        job = ("run", self._rows, "--out", out, "--id", "id", "--max-tokens", "4", "--order", "arrival")
        return self._lives.run(*job, *self.running, failpoint=failpoint).wait()

    def resume(self) -> tuple[int, str]:
        """The exit code, and what was said."""
        life = self._lives.run("resume", self.out, *self.running)
        return life.wait(), life.said


@pytest.fixture(scope="module")
def cut(lives: JobProcesses, paced_server: Server, tmp_path_factory: pytest.TempPathFactory) -> TornFile:
    return TornFile(lives, paced_server, tmp_path_factory.mktemp("cut"))


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
def test_what_no_commit_speaks_of_is_cut_off(
    cut: TornFile, tmp_path: Path, tear: Callable[[JobDirectory], None]
) -> None:
    kept = Kept(cut.directory, tmp_path)
    tear(cut.directory)
    code, said = cut.resume()
    assert code == ENDED, said
    check_whole(cut.out, cut.undisturbed, cut.ids, ROWS)
    kept.put_back()


def test_answers_that_are_gone_are_told_of(cut: TornFile, tmp_path: Path) -> None:
    kept = Kept(cut.directory, tmp_path)
    path = cut.directory.result_file(RowStatus.OK)
    os.truncate(path, path.stat().st_size // 2)
    code, said = cut.resume()
    assert code == 1
    assert "[job_damaged]" in said
    assert str(path) in said
    assert "Traceback" not in said
    kept.put_back()


class Kept:
    """The files of a job as they lay there."""

    def __init__(self, directory: JobDirectory, place: Path) -> None:
        self._directory, self._place = directory, place
        self._files = {
            path: path.read_bytes()
            for path in (*directory.path.glob("*"), *(directory.result_file(kind) for kind in RowStatus))
            if path.is_file()
        }

    def put_back(self) -> None:
        for path in self._directory.path.glob("*"):
            path.unlink()
        for path, content in self._files.items():
            path.write_bytes(content)
