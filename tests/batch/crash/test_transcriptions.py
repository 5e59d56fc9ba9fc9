"""A job that transcribes audio and is killed comes to what an undisturbed one comes to, and sends few blocks again."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import urllib.request
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from inflight.batch.job.directory import JobDirectory
from inflight.batch.verify.checker import verify
from tests.batch.crash.job_processes import JobProcess, JobProcesses
from tests.batch.crash.jobs import lines_of
from tests.client.support.encoder_server import EncoderServer
from tests.fixtures.voice import encoded, silence, voice
from tests.fixtures.waiting import wait_until

BLOCKS, CLIPS = 40, 5
IN_FLIGHT = 9
"""Clips of the last killed process that the server may answer after its end."""


def sent_clips(server: EncoderServer) -> int:
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith('nv_inference_count{model="whi'))


def kept_blocks(out: Path, scratch: Path) -> int:
    """How many blocks the state of a job has, by a copy of it."""
    for path in out.with_suffix(".job").glob("state.db*"):
        with suppress(FileNotFoundError):
            shutil.copy(path, scratch / path.name)
    with closing(sqlite3.connect(scratch / "state.db")) as database, suppress(sqlite3.DatabaseError):
        return int(database.execute("SELECT count(*) FROM blocks").fetchone()[0])
    return 0


@pytest.mark.parametrize("kills", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_each_row_is_recorded_once_and_blocks_are_kept(
    kills: int, scripted_encoders: EncoderServer, lives: JobProcesses, tmp_path: Path
) -> None:
    spoken = voice(1)
    (tmp_path / "long.wav").write_bytes(encoded(np.tile(np.concatenate((spoken, silence(6))), BLOCKS)))
    rows = [{"id": "long", "audio": "long.wav"}]
    for number in range(CLIPS):
        (tmp_path / f"{number}.wav").write_bytes(encoded(spoken[: len(spoken) - 100 * number]))
        rows.append({"id": str(number), "audio": f"{number}.wav"})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--task", "transcribe", "--id", "id", "--server", scripted_encoders.grpc_address)
    options += ("--checkpoint-seconds", "0.03", "--concurrency", "1", "--initial-prompt", "wait 0.03")

    def start(out: str) -> JobProcess:
        return lives.start("run", tmp_path / "rows.jsonl", "--out", tmp_path / out, *options)

    begun = sent_clips(scripted_encoders)
    assert start("undisturbed.jsonl").wait() == 0
    assert sent_clips(scripted_encoders) - begun == BLOCKS + CLIPS
    out, scratch = tmp_path / "said.jsonl", tmp_path / "scratch"
    scratch.mkdir()
    kept = 0
    for _ in range(kills):
        life = start(out.name)
        wait_until(lambda before=kept: kept_blocks(out, scratch) >= before + 5)
        life.send(signal.SIGKILL)
        assert life.wait() == -9
        kept = kept_blocks(out, scratch)
    begun = sent_clips(scripted_encoders)
    assert start(out.name).wait() == 0
    assert sent_clips(scripted_encoders) - begun <= BLOCKS + CLIPS - kept + IN_FLIGHT
    assert kept_blocks(out, scratch) == 0
    assert lines_of(out) == lines_of(tmp_path / "undisturbed.jsonl")
    assert verify(JobDirectory.find(out)).complete
