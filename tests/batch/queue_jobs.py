"""Jobs of queues, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import InputSpec, Job, OutputSpec, RunOptions
from inflight.batch.reporting.progress import JobProgress, JobState
from inflight.batch.runner import JobResult, JobRunner
from tests.batch.scripted_backend import Behaviour, ScriptedBackend, echo
from tests.fixtures.queues import SampleQueue


class QueueJob:
    """A job of a queue, in a folder, with a server that does what a test says."""

    def __init__(self, queue: SampleQueue, folder: Path, behaviour: Behaviour = echo, **options: Any) -> None:
        settings = {"until_empty": 0.3, "lease_seconds": 10, "checkpoint_seconds": 0.05, "max_attempts": 1} | options
        settings.setdefault("dead_letters", queue.dead_letters)
        output = settings.pop("output", OutputSpec(address=str(folder / "answers.jsonl")))
        how: dict[str, Any] = {name: settings.pop(name, None) for name in ("row_format", "id")}
        source = InputSpec(address=queue.address, **how)
        self.job = Job(input=source, output=output, run_options=RunOptions.model_validate(settings))
        self.directory = JobDirectory.from_output(output, folder / "answers.job")
        self.server, self.progress = ScriptedBackend(behaviour), [JobProgress.now(JobState.WAITING, "", ())]
        self.runner = JobRunner(self.job, self.directory, self.progress.append, backends=[self.server])
        self._folder = folder

    def run(self) -> JobResult:
        return self.runner.run()

    def records(self, kind: str = "") -> list[dict[str, Any]]:
        """Of all segments."""
        paths = [path for path in self._folder.glob("answers*.jsonl") if kind in path.name]
        paths = [path for path in paths if kind or not {"errors", "dead"} & set(path.name.split("."))]
        try:
            return [json.loads(line) for path in sorted(paths) for line in path.read_text().splitlines()]
        except FileNotFoundError:  # a segment was sealed meanwhile
            return self.records(kind)


def prompts(count: int, word: str = "prompt") -> list[dict[str, str]]:
    return [{"prompt": f"{word} {number}"} for number in range(count)]
