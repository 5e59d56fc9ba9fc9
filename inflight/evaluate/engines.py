"""Evaluations of engines that are served for them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import orjson

from inflight.batch.job.spec import RunOptions
from inflight.evaluate.evaluation import EvaluationDirectory
from inflight.evaluate.run import Scoring


def engine_scoring(scoring: Scoring, engine: Path, folder: Path) -> Scoring:
    """Return an evaluation with the engine in place of its servers.

    It has a directory in `folder` for this build of the engine and these requests, so that answers of an earlier build
    are never taken for those of this one.
    """
    asked = orjson.dumps(scoring.job.model_dump(mode="json", exclude={"run_options", "output"}))
    build = hashlib.sha256((engine / "engine.json").read_bytes() + asked).hexdigest()[:16]
    directory = EvaluationDirectory((folder / build).absolute())
    running = {"ephemeral": str(engine.absolute()), "servers": RunOptions().servers}
    job = scoring.job.model_copy(
        update={
            "output": scoring.job.output.model_copy(update={"address": str(directory.answers)}),
            "run_options": scoring.job.run_options.model_copy(update=running),
        }
    )
    return replace(scoring, directory=directory, job=job)
