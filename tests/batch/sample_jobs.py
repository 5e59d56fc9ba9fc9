"""Small jobs that are really run, in this process, by a server that answers as a test says."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from inflight_client import InflightError

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import InputSpec, Job, OutputSpec, RunOptions
from inflight.batch.runner import JobResult, JobRunner
from tests.batch.scripted_backend import Behaviour, ScriptedBackend, echo
from tests.fixtures.waiting import wait_until_async


async def picky(server: ScriptedBackend, prompt: str) -> str | InflightError:
    """Refuses long prompts, and has no time for those that say slow."""
    if "long" in prompt:
        return InflightError("the prompt is too long", "prompt_too_long")
    if "slow" in prompt:
        return InflightError("the time was over", "deadline_exceeded")
    return prompt


def job_of(folder: Path, prompts: Sequence[str], **running: object) -> Job:
    """`answers.jsonl` of `rows.jsonl`; a prompt of `{` is a line that is no row."""
    rows = folder / "rows.jsonl"
    lines = (p if p == "{" else json.dumps({"id": f"r{n}", "prompt": p}) for n, p in enumerate(prompts))
    rows.write_text("".join(f"{line}\n" for line in lines))
    return Job(
        input=InputSpec(address=str(rows), id="id"),
        output=OutputSpec(address=str(folder / "answers.jsonl")),
        run_options=RunOptions.model_validate(
            {"servers": ("gpu1:8001",), "checkpoint_seconds": 0.05, "max_attempts": 1, **running}
        ),
    )


def created(job: Job, path: Path | None = None) -> JobDirectory:
    """The directory of a job that has not run yet."""
    directory = JobDirectory.from_output(job.output, path)
    directory.path.mkdir()
    directory.write_job(job)
    return directory


def run(job: Job, behaviour: Behaviour = picky) -> tuple[JobDirectory, JobResult]:
    directory = JobDirectory.from_output(job.output)
    return directory, JobRunner(job, directory, backends=[ScriptedBackend(behaviour, "gpu1:8001")]).run()


@contextmanager
def running(job: Job) -> Iterator[JobDirectory]:
    """A job of which one row is never answered, once those before it are; it is cancelled at last."""
    begun = threading.Event()

    async def stuck(server: ScriptedBackend, prompt: str) -> str | InflightError:
        if prompt != "stuck":
            return await echo(server, prompt)
        await wait_until_async(lambda: server.open == {prompt})
        begun.set()
        await asyncio.sleep(600)
        return prompt

    directory = JobDirectory.from_output(job.output)
    thread = threading.Thread(target=run, args=(job, stuck))
    thread.start()
    try:
        assert begun.wait(60)
        yield directory
    finally:
        directory.cancel.touch()
        thread.join(60)
        assert not thread.is_alive()
