"""One job, killed six or a hundred times: its output is that of a job that nothing befell."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from inflight.deploy.server.server import Server
from tests.batch.crash.job_processes import JobProcesses
from tests.batch.crash.jobs import DoneRows, check_whole, done_rows, write_rows

WRITING = ("lines.written", "lines.synced", "commit")
"""Points between the first byte of a checkpoint's lines and its commit."""


@dataclass(frozen=True)
class Kill:
    """An entry of the kill log: when it died, at which point (none: at a random moment), and what it left behind."""

    seconds: float
    point: str
    left: DoneRows

    def __str__(self) -> str:
        how = self.point or "any moment"
        torn = ", half a line" if self.left.half_line else ""
        return f"{self.seconds:.2f} s ({how}): {self.left.next} rows, {self.left.uncommitted} bytes more{torn}"


@pytest.mark.parametrize(
    ("kills", "rows", "while_writing", "server"),
    [(6, 200, 1, "paced_server"), pytest.param(100, 2000, 30, "crash_server", marks=pytest.mark.slow)],
)
def test_a_job_that_was_killed_many_times_is_whole(
    kills: int,
    rows: int,
    while_writing: int,
    server: str,
    lives: JobProcesses,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    asked: Server = request.getfixturevalue(server)
    ids = write_rows(tmp_path / "rows.jsonl", rows)
    running = ("--server", asked.grpc_address, "--checkpoint-seconds", "0.05", "--max-tokens", "8")
    job = (tmp_path / "rows.jsonl", "--id", "id", *running, "--concurrency", "2")
    undisturbed = tmp_path / "undisturbed.jsonl"
    assert lives.run("run", tmp_path / "rows.jsonl", "--id", "id", *running, "--out", undisturbed).wait() == 3
    out = tmp_path / "answers.jsonl"
    draw = random.Random(7)
    log: list[Kill] = []
    (tmp_path / "scratch").mkdir()
    while len(log) < kills:
        writing = len(log) % 5 < 2
        point = f"{draw.choice(WRITING)}:{draw.randint(1, 6)}:kill" if writing else ""
        began = time.monotonic()
        order = "arrival" if writing else draw.choice(("arrival", "prefix"))
        life = lives.start("run", *job, "--out", out, "--order", order, failpoint=point)
        if not point:
            life.ended.wait(draw.uniform(0.0, 0.7))
            life.send(signal.SIGKILL)
        assert life.wait() == -9, f"the job ended after {len(log)} kills: {life.said}"
        log.append(Kill(time.monotonic() - began, point, done_rows(out, tmp_path / "scratch")))
    written = [kill for kill in log if kill.left.uncommitted]
    half = sum(kill.left.half_line for kill in written)
    print(
        *log, f"{len(log)} kills, {len(written)} while output was being written, {half} of them within a line", sep="\n"
    )
    assert 0 < log[-1].left.next < rows
    assert len(written) >= while_writing
    assert lives.run("resume", out, "--concurrency", "64").wait() == 3
    check_whole(out, undisturbed, ids, rows)
