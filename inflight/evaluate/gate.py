"""A gate for engines: the candidate answers what the baseline answered, and the verdict is kept with the engine."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from inflight.batch.errors import BatchError, map_disk_errors
from inflight.batch.job.spec import Job
from inflight.common.atomic_files import write_atomic
from inflight.evaluate.compare import Comparison, compare
from inflight.evaluate.evaluation import Evaluation, EvaluationDirectory
from inflight.evaluate.golden import GoldenSet
from inflight.evaluate.metrics import load_metrics
from inflight.evaluate.report import as_markdown
from inflight.evaluate.run import Scoring

VERDICT, VERDICT_TEXT = "verdict.json", "verdict.md"


@dataclass(frozen=True)
class Gate:
    """The baseline's golden set at `golden`, the engine to judge, and the folder of its evaluations."""

    baseline: EvaluationDirectory
    golden: str
    engine: Path
    folder: Path

    def scoring(self) -> Scoring:
        """Return the evaluation of the engine, asked as the baseline was.

        It has a directory of its own for each build of the engine, so that answers of an earlier one are never judged.
        Raises BatchError `evaluations_differ` for another golden set, `output_unwritable` if the verdict has no place.
        """
        before = self._before
        if not os.access(self.engine, os.W_OK):
            raise BatchError(
                f"{self.engine} can't be written, and {VERDICT} belongs in it; give the engine a directory that you may"
                " write",
                "output_unwritable",
            )
        asked = orjson.dumps([before.golden.sha256, self._job(Path("answers.jsonl")).binding()])
        build = hashlib.sha256((self.engine / "engine.json").read_bytes() + asked).hexdigest()[:16]
        directory = EvaluationDirectory(self.folder / build)
        metrics = load_metrics([each.name for each in before.metrics])
        scoring = Scoring(directory, self._job(directory.answers), metrics, before.golden.reference)
        found = GoldenSet()
        for row in scoring.golden():
            found.add(row)
        if found.sha256 != before.golden.sha256:
            raise BatchError(
                f"{scoring.job.input.shown} has {found.rows:,} rows and the hash {found.sha256[:12]}, and"
                f" {self.baseline.path} evaluated {before.golden.rows:,} rows with the hash {before.golden.sha256[:12]};"
                " give the golden set of the baseline, or evaluate the baseline again",
                "evaluations_differ",
            )
        return scoring

    def judge(self, candidate: EvaluationDirectory, margin: float) -> Comparison:
        """Compare the evaluations, and write the verdict into the engine's directory. Raises BatchError."""
        found = compare(self.baseline, candidate, margin)
        after = candidate.read()
        builds = {"baseline_model": self._before.model, "candidate_model": after.model}
        values: dict[str, Any] = {**found.as_json(), "golden": after.golden.model_dump(), **builds}
        with map_disk_errors(self.engine):
            write_atomic(self.engine / VERDICT, orjson.dumps(values, option=orjson.OPT_INDENT_2) + b"\n")
            write_atomic(self.engine / VERDICT_TEXT, as_markdown(found) + "\n")
        return found

    @cached_property
    def _before(self) -> Evaluation:
        return self.baseline.read()

    def _job(self, answers: Path) -> Job:
        """Return the baseline's job with the engine in place of its servers."""
        job = self._before.job
        running = {**job["run_options"], "ephemeral": str(self.engine)}
        parts = {
            "input": {**job["input"], "address": self.golden},
            "output": {**job["output"], "address": str(answers)},
            "run_options": {name: value for name, value in running.items() if name != "servers"},
        }
        try:
            return Job.model_validate({**job, **parts})
        except ValidationError as error:
            raise BatchError(
                f"the job of {self.baseline.path} is of another version of inflight ({error.errors()[0]['msg']});"
                " evaluate the baseline again",
                "evaluation_damaged",
            ) from None
