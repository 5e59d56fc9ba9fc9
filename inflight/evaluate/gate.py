"""A gate for engines: the candidate answers what the baseline answered, and the verdict is kept with the engine."""

from __future__ import annotations

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
from inflight.evaluate.engines import engine_scoring
from inflight.evaluate.evaluation import Evaluation, EvaluationDirectory
from inflight.evaluate.judge import Judge
from inflight.evaluate.metrics import CHOICE_METRICS, load_metrics
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
        """Return the evaluation of the engine, which is asked what the baseline was asked.

        Raises BatchError `evaluations_differ` for another golden set, `output_unwritable` if the verdict has no place.
        """
        before = self._before
        if not os.access(self.engine, os.W_OK):
            raise BatchError(
                f"{self.engine} can't be written, and {VERDICT} belongs in it; give the engine a directory that you may"
                " write",
                "output_unwritable",
            )
        metrics, job = load_metrics([each.name for each in before.metrics]), self._job()
        choices = job.encode.continuations if job.encode and metrics[0].name in CHOICE_METRICS else None
        scoring = Scoring(self.baseline, job, metrics, before.golden.reference, choices, self._judge())
        found = scoring.check_golden()
        if found.sha256 != before.golden.sha256:
            raise BatchError(
                f"{scoring.job.input.shown} has {found.rows:,} rows and the hash {found.sha256[:12]}, and the baseline"
                f" {self.baseline.path} {before.golden.rows:,} rows and the hash {before.golden.sha256[:12]}; give the"
                " golden set of the baseline, or evaluate the baseline again",
                "evaluations_differ",
            )
        with map_disk_errors(self.engine):
            for name in (VERDICT, VERDICT_TEXT):  # of an earlier run; none is there until this one has its own
                (self.engine / name).unlink(missing_ok=True)
        return engine_scoring(scoring, self.engine, self.folder)

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

    def _judge(self) -> Judge | None:
        """Return the baseline's judge."""
        if (judge := self._before.judge) is None:
            return None
        job = self._parsed(judge.job)
        return Judge(job.run_options, judge.rubric, job.defaults.max_tokens)

    def _job(self) -> Job:
        """Return the baseline's job over the golden set that is here."""
        job = self._before.job
        running = {**job["run_options"], "finish_by": None}  # that of the baseline is over
        return self._parsed({**job, "input": {**job["input"], "address": self.golden}, "run_options": running})

    def _parsed(self, job: dict[str, Any]) -> Job:
        try:
            return Job.model_validate(job)
        except ValidationError as error:
            raise BatchError(
                f"the job of {self.baseline.path} is of another version of inflight ({error.errors()[0]['msg']});"
                " evaluate the baseline again",
                "evaluation_damaged",
            ) from None
