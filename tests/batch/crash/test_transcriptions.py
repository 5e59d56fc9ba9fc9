"""A job that transcribes audio and is killed comes to what an undisturbed one comes to, and sends few blocks again."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import time
import urllib.request
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from inflight.batch.job.directory import JobDirectory
from inflight.batch.verify.checker import verify
from tests.batch.crash.job_processes import JobProcess, JobProcesses
from tests.batch.crash.jobs import lines_of
from tests.client.support.encoder_server import EncoderServer
from tests.fixtures.voice import encoded, silence, voice
from tests.fixtures.waiting import wait_until

BLOCKS, CLIPS = 12, 5


def sent_clips(server: EncoderServer) -> int:
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith('nv_inference_count{model="whi'))


def all_sent_clips(server: EncoderServer) -> int:
    """The same, once it answers no more for a process that was killed, or for a test that left clips of a second."""
    before = -1
    while (now := sent_clips(server)) != before:
        before = now
        time.sleep(1.5)
    return now


def kept_blocks(out: Path, scratch: Path) -> int:
    """How many blocks the state of a job has, by a copy of it."""
    for path in out.with_suffix(".job").glob("state.db*"):
        with suppress(FileNotFoundError):
            shutil.copy(path, scratch / path.name)
    with closing(sqlite3.connect(scratch / "state.db")) as database, suppress(sqlite3.DatabaseError):
        return int(database.execute("SELECT count(*) FROM blocks").fetchone()[0])
    return 0


def test_each_row_is_recorded_once_and_blocks_are_kept(
    scripted_encoders: EncoderServer, lives: JobProcesses, tmp_path: Path
) -> None:
    spoken = voice(1)
    (tmp_path / "long.wav").write_bytes(encoded(np.tile(np.concatenate((spoken, silence(28))), BLOCKS)))
    rows = [{"id": "long", "audio": "long.wav"}]
    for number in range(CLIPS):
        (tmp_path / f"{number}.wav").write_bytes(encoded(spoken[: len(spoken) - 100 * number]))
        rows.append({"id": str(number), "audio": f"{number}.wav"})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    address = ("--server", scripted_encoders.grpc_address)
    options: tuple[str, ...] = ("--task", "transcribe", "--id", "id", *address)
    options += ("--checkpoint-seconds", "0.03", "--concurrency", "1", "--initial-prompt", "wait 0.03")

    def start(out: str) -> JobProcess:
        return lives.start("run", tmp_path / "rows.jsonl", "--out", tmp_path / out, *options)

    begun = all_sent_clips(scripted_encoders)
    assert start("undisturbed.jsonl").wait() == 0
    assert all_sent_clips(scripted_encoders) - begun == BLOCKS + CLIPS
    out, scratch = tmp_path / "said.jsonl", tmp_path / "scratch"
    scratch.mkdir()
    kept = 0
    for _ in range(3):
        life = start(out.name)
        wanted = kept + 2
        wait_until(lambda: kept_blocks(out, scratch) >= wanted)  # noqa: B023
        life.send(signal.SIGKILL)
        assert life.wait() == -9
        kept = kept_blocks(out, scratch)
    begun = all_sent_clips(scripted_encoders)
    assert start(out.name).wait() == 0
    assert sent_clips(scripted_encoders) - begun <= BLOCKS + CLIPS - kept
    assert kept_blocks(out, scratch) == 0
    assert lines_of(out) == lines_of(tmp_path / "undisturbed.jsonl")
    assert verify(JobDirectory.find(out)).complete
