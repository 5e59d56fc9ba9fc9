"""SIGTERM, as a machine that is taken away sends it: what is in flight is finished, the rest is for another day."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from inflight.batch.job.directory import JobDirectory
from inflight.deploy.server.server import Server
from tests.batch.crash.job_processes import JobProcesses
from tests.batch.crash.jobs import check_whole, lines_of, write_rows
from tests.fixtures.server import STEP_SECONDS
from tests.fixtures.waiting import wait_until

ROWS = 150
ENDED, STOPPED = 3, 75


def asked(server: Server, max_tokens: int) -> tuple[str, ...]:
    more = ("--id", "id", "--concurrency", "8", "--checkpoint-seconds", "0.05")
    return ("--server", server.grpc_address, "--max-tokens", str(max_tokens), *more)


def in_flight(out: Path) -> int:
    progress = JobDirectory(out.with_suffix(".job")).progress
    return int(json.loads(progress.read_text())["in_flight"]) if progress.exists() else 0


def test_sigterm_lets_what_is_in_flight_finish_and_leaves_the_rest(
    lives: JobProcesses, paced_server: Server, tmp_path: Path
) -> None:
    ids = write_rows(tmp_path / "rows.jsonl", ROWS)
    undisturbed, out = tmp_path / "undisturbed.jsonl", tmp_path / "answers.jsonl"
    fast = (*asked(paced_server, 20), "--concurrency", "64")
    assert lives.run("run", tmp_path / "rows.jsonl", "--out", undisturbed, *fast).wait() == ENDED
    life = lives.start("run", tmp_path / "rows.jsonl", "--out", out, *asked(paced_server, 20))
    wait_until(lambda: in_flight(out) == 8)
    life.send(signal.SIGTERM)
    assert life.wait() == STOPPED, life.said
    progress = json.loads(JobDirectory.find(out).progress.read_text())
    assert progress["state"] == "stopped"
    assert progress["counts"]["ok"] + progress["counts"]["error"] >= 8
    assert progress["counts"]["retries"] == 0
    assert lives.run("resume", out, "--concurrency", "64").wait() == ENDED
    check_whole(out, undisturbed, ids, ROWS)


def test_a_second_sigterm_stops_at_once(lives: JobProcesses, paced_server: Server, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", 20, odd=False)
    out = tmp_path / "answers.jsonl"
    life = lives.start("run", tmp_path / "rows.jsonl", "--out", out, *asked(paced_server, 3000))
    wait_until(lambda: in_flight(out) == 8)
    began = time.monotonic()
    life.send(signal.SIGTERM)
    wait_until(lambda: "Stopping" in life.said)
    life.send(signal.SIGTERM)
    assert life.wait() == STOPPED, life.said
    assert time.monotonic() - began < 3000 * STEP_SECONDS / 2
    assert not any(lines_of(out).values())


def test_the_notice_is_kept(lives: JobProcesses, paced_server: Server, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", 20, odd=False)
    out = tmp_path / "answers.jsonl"
    life = lives.start(
        "run", tmp_path / "rows.jsonl", "--out", out, *asked(paced_server, 3000), "--drain-seconds", "0.5"
    )
    wait_until(lambda: in_flight(out) == 8)
    began = time.monotonic()
    life.send(signal.SIGTERM)
    assert life.wait() == STOPPED, life.said
    assert 0.5 <= time.monotonic() - began < 3000 * STEP_SECONDS / 2
