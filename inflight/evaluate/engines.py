"""Evaluations of engines that are served for them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import orjson

from inflight.batch.errors import BatchError
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import (
    TEXT_COLUMNS,
    EncodeSpec,
    GenerationDefaults,
    InputSpec,
    Job,
    OutputSpec,
    RunOptions,
)
from inflight.batch.reporting.progress import JobState
from inflight.batch.runner import JobRunner
from inflight.evaluate.evaluation import Evaluation, EvaluationDirectory
from inflight.evaluate.metrics import Metric
from inflight.evaluate.run import Scoring


def engine_scoring(scoring: Scoring, engine: Path, folder: Path) -> Scoring:
    """Return an evaluation with the engine in place of its servers.

    It has a directory in `folder` for this build of the engine and these requests, so that answers of an earlier build
    are never taken for those of this one.
    """
    asked = orjson.dumps(scoring.job.model_dump(mode="json", exclude={"run_options", "output"}))
    build = hashlib.sha256((engine / "engine.json").read_bytes() + asked).hexdigest()[:16]
    directory = EvaluationDirectory((folder / build).absolute())
    alone = RunOptions(ephemeral=str(engine.absolute()))
    running = {name: getattr(alone, name) for name in ("ephemeral", "servers", "model")}
    job = scoring.job.model_copy(
        update={
            "output": scoring.job.output.model_copy(update={"address": str(directory.answers)}),
            "run_options": scoring.job.run_options.model_copy(update=running),
        }
    )
    return replace(scoring, directory=directory, job=job)


def greedy_scorings(golden: str, reference: str | None, metrics: Sequence[Metric]) -> list[Scoring]:
    """Return an evaluation of plain rows for each task of the metrics, for `engine_scoring`; answers are greedy."""
    scorings = []
    for task in dict.fromkeys(metric.task for metric in metrics):
        of_task = [metric for metric in metrics if metric.task == task]
        job = Job(
            input=InputSpec(address=golden, prompt=TEXT_COLUMNS[task]),
            output=OutputSpec(address="answers.jsonl"),
            defaults=GenerationDefaults(temperature=0.0 if task == "generate" else None, generation_config="model"),
            encode=None if task == "generate" else EncodeSpec(task="score", continuations=reference or "continuations"),
        )
        scorings.append(Scoring(EvaluationDirectory(Path()), job, of_task, reference))
    return scorings


def evaluate_engine(
    scorings: Sequence[Scoring], engine: Path, folder: Path, on_message: Callable[[str], None]
) -> list[Evaluation]:
    """Serve an engine and evaluate it; what an interrupted run answered is kept. Raises BatchError, also if a job ends
    early."""
    found = []
    for template in scorings:
        scoring = engine_scoring(template, engine, folder)
        scoring.begin()
        job = scoring.job
        end = JobRunner(job, JobDirectory.from_output(job.output), on_message=on_message).run()
        if end.state is not JobState.FINISHED:
            raise BatchError(f"the evaluation of {engine} ended: {end.message}; repeat the command", end.code)
        found.append(scoring.score())
    return found
