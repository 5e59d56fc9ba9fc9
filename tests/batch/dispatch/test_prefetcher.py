"""How far a job reads ahead of a row that takes its time."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from inflight.batch.dispatch import prefetcher
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.reporting.progress import JobState
from inflight.batch.runner import JobRunner
from inflight.batch.state.ledger import Ledger
from inflight.batch.verify.checker import verify
from tests.batch.sample_jobs import job_of, run
from tests.batch.scripted_backend import ScriptedBackend, echo

MANY = 6000
SETTINGS = {"window": 64, "checkpoint_seconds": 0.02, "concurrency": 64}


def check(directory: JobDirectory, prompts: list[str]) -> None:
    lines = directory.result_file(RowStatus.OK).read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == [prompt for prompt in prompts if prompt != "{"]
    assert verify(directory).complete


def _stop(runner: JobRunner, when: threading.Event) -> None:
    when.wait(60)
    runner.stop()


def test_nothing_more_is_read_while_many_rows_wait_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetcher, "MAX_OUT_OF_ORDER", 500)
    counts: list[int] = []

    async def slow(server: ScriptedBackend, prompt: str) -> str:
        while prompt == "tea 0" and (not counts or counts[-1] != len(server.asked)):
            counts.append(len(server.asked))
            await asyncio.sleep(0.5)
        return prompt

    prompts = [f"tea {number}" for number in range(MANY)]
    directory, end = run(job_of(tmp_path, prompts, **SETTINGS), slow)
    assert end.exit_code == 0
    assert counts[-1] < MANY / 2
    check(directory, prompts)


@pytest.mark.parametrize("before", [0, 200])
def test_a_row_that_many_dead_letters_wait_for_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """It waits itself, in a window that is not full, and a checkpoint comes whenever the prefetcher has looked."""

    def look(ledger: Ledger) -> int:
        seen = len(ledger._done_out_of_order)
        ledger.checkpoint()
        return seen

    monkeypatch.setattr(prefetcher, "MAX_OUT_OF_ORDER", 100)
    monkeypatch.setattr(Ledger, "out_of_order", property(look))
    prompts = ["{"] * before + ["tea 0", *["{"] * 1000, "tea 1"]
    directory, end = run(job_of(tmp_path, prompts, **SETTINGS), echo)
    assert (end.counts.ok, end.counts.dead) == (2, before + 1000)
    check(directory, prompts)


def test_a_job_that_is_resumed_reads_on_to_every_row_that_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = {"tea 0", "tea 700", "tea 1900"}
    prompts = [f"tea {number}" for number in range(2000)]
    job = job_of(tmp_path, prompts, **SETTINGS, drain_seconds=0)
    ended = threading.Event()

    async def never(server: ScriptedBackend, prompt: str) -> str:
        if len(server.asked) == len(prompts):
            ended.set()
        await asyncio.sleep(600 if prompt in stuck else 0)
        return prompt

    directory = JobDirectory.from_output(job.output)
    runner = JobRunner(job, directory, backends=[ScriptedBackend(never)])
    stopping = threading.Thread(target=_stop, args=(runner, ended))
    stopping.start()
    end = runner.run()
    stopping.join()
    assert (end.state, end.counts.done) == (JobState.STOPPED, len(prompts) - len(stuck))
    monkeypatch.setattr(prefetcher, "MAX_OUT_OF_ORDER", 100)
    assert run(job, echo)[1].exit_code == 0
    check(directory, prompts)
