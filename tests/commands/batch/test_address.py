"""`inflight batch ...` of jobs that are named by the address of their output."""

from __future__ import annotations

import functools
import sqlite3
from pathlib import Path

import pytest

from inflight.batch.runner import JobRunner
from inflight.commands.batch import execute
from tests.batch.sample_jobs import job_of, picky
from tests.batch.scripted_backend import ScriptedBackend
from tests.fixtures.command_runner import CommandRunner
from tests.fixtures.s3_server import s3_server


@pytest.mark.parametrize("kind", ["sqlite", "s3"])
def test_every_command_finds_the_job_that_run_names(
    batch: CommandRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    monkeypatch.setattr(
        execute, "_runner_class", lambda job: functools.partial(JobRunner, backends=[ScriptedBackend(picky)])
    )
    job_of(tmp_path, ("tea", "so slow", "milk"))
    with s3_server() as storage:
        output = "sqlite:///shop.db" if kind == "sqlite" else storage.address("out/answers.parquet")
        more: tuple[str, ...] = ()
        if kind == "sqlite":
            more = ("--output-table", "answers")
            sqlite3.connect("shop.db").close()
        done = batch("run", "rows.jsonl", "--id", "id", "--out", output, "--max-attempts", "1", *more)
        assert done.code == 3, done.err
        (directory,) = tmp_path.glob("*.job")
        assert f"Job directory: {directory.name}\n" in done.err
        (status,) = batch("status", output, "--json").objects
        assert (status["job"], status["state"]) == (directory.name, "finished")
        assert batch("verify", output).code == 0
        assert "finished" in batch("cancel", output).out
        assert batch("resume", output).code == 3
        again = batch("retry", output, "--only", "deadline_exceeded")
        assert (again.code, "Rows to send again: 1." in again.err) == (3, True)
