"""SIGTERM, as a machine that is taken away sends it: what is in flight is finished, the rest is for another day."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from inflight.batch.job.directory import JobDirectory
from inflight.deploy.server.server import Server
from tests.batch.crash.job_processes import JobProcesses
from tests.batch.crash.jobs import ENDED, STOPPED, DisturbedJob, lines_of, write_rows
from tests.fixtures.server import STEP_SECONDS
from tests.fixtures.waiting import wait_until


def in_flight(out: Path) -> int:
    progress = JobDirectory(out.with_suffix(".job")).progress
    return int(json.loads(progress.read_text())["in_flight"]) if progress.exists() else 0


def test_sigterm_lets_what_is_in_flight_finish_and_leaves_the_rest(
    lives: JobProcesses, paced_server: Server, tmp_path: Path
) -> None:
    options = ("--max-tokens", "20", "--checkpoint-seconds", "0.05", "--concurrency", "64")
    job = DisturbedJob(lives, paced_server.grpc_address, tmp_path, 150, *options)
    life = job.start("--concurrency", "8")
    wait_until(lambda: in_flight(job.out) == 8)
    life.send(signal.SIGTERM)
    assert life.wait() == STOPPED, life.said
    progress = json.loads(JobDirectory.find(job.out).progress.read_text())
    assert progress["state"] == "stopped"
    assert progress["counts"]["ok"] + progress["counts"]["error"] >= 8
    assert progress["counts"]["retries"] == 0
    assert job.resume("--concurrency", "64").wait() == ENDED
    job.check_whole()


def test_a_second_sigterm_stops_at_once(lives: JobProcesses, paced_server: Server, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", 20, odd=False)
    out = tmp_path / "answers.jsonl"
    options = ("--max-tokens", "3000", "--concurrency", "8", "--drain-seconds", "120")
    life = lives.start("run", tmp_path / "rows.jsonl", "--out", out, "--server", paced_server.grpc_address, *options)
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
    options = ("--max-tokens", "3000", "--concurrency", "8", "--drain-seconds", "0.5")
    life = lives.start("run", tmp_path / "rows.jsonl", "--out", out, "--server", paced_server.grpc_address, *options)
    wait_until(lambda: in_flight(out) == 8)
    began = time.monotonic()
    life.send(signal.SIGTERM)
    assert life.wait() == STOPPED, life.said
    assert 0.5 <= time.monotonic() - began < 3000 * STEP_SECONDS / 2
