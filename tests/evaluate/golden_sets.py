"""Small golden sets, and evaluations of them whose answers a test decides."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inflight_client import InflightError

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import EncodeSpec, InputSpec, Job, OutputSpec, RunOptions
from inflight.batch.runner import JobRunner
from inflight.evaluate.evaluation import EvaluationDirectory
from inflight.evaluate.metrics import load_metrics
from inflight.evaluate.run import Scoring
from tests.batch.scripted_backend import ScriptedBackend

Answers = Mapping[str, str | InflightError]


def golden(folder: Path, rows: Sequence[Mapping[str, Any]], name: str = "golden.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def scoring(
    source: Path,
    out: Path,
    metrics: Sequence[str] = ("exact",),
    reference: str | None = "answer",
    choices: str | None = None,
    **asked: Any,
) -> Scoring:
    directory, loaded = EvaluationDirectory(out), load_metrics(metrics)
    encode = EncodeSpec(task="score", continuations=choices or reference or "continuations")
    job = Job(
        input=InputSpec(address=str(source), **({"id": "id"} | asked)),
        output=OutputSpec(address=str(directory.answers)),
        encode=encode if loaded[0].task == "score" else None,
        run_options=RunOptions(servers=("gpu1:8001",), checkpoint_seconds=0.05, max_attempts=1),
    )
    return Scoring(directory, job, loaded, reference, choices)


def evaluate(
    wanted: Scoring, answers: Answers, retry: Sequence[str] | None = None, judge: ScriptedBackend | None = None
) -> EvaluationDirectory:
    """Run an evaluation; a prompt that `answers` does not have is its own answer. `retry`: codes of rows to send again,
    of a job that is finished."""

    async def answer(server: ScriptedBackend, prompt: str) -> str | InflightError:
        return answers.get(prompt, prompt)

    wanted.begin()
    _run(wanted.job, ScriptedBackend(answer), retry)
    if judge is not None:
        job = wanted.judge_job()
        assert job is not None
        _run(job, judge)
    wanted.score()
    return wanted.directory


def _run(job: Job, backend: ScriptedBackend, retry: Sequence[str] | None = None) -> None:
    JobRunner(job, JobDirectory.from_output(job.output), backends=[backend]).run(retry)
