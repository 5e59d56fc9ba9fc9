"""An evaluation: a batch job over a golden set, whose answers are scored once all rows are done."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from inflight_client import InflightError

from inflight import __version__
from inflight.batch.errors import BatchError, map_disk_errors
from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import TOKENS, Job
from inflight.batch.outputs.answer_record import AnswerRecord, read_answer_records
from inflight.batch.reporting.manifest import JobManifest
from inflight.batch.state.line_file import read_lines
from inflight.common.atomic_files import atomic_writer, make_directory, write_atomic
from inflight.evaluate.evaluation import (
    Evaluation,
    EvaluationDirectory,
    GoldenSummary,
    JudgeSummary,
    MetricSummary,
    RowScore,
)
from inflight.evaluate.golden import GoldenRow, GoldenSet, read_golden
from inflight.evaluate.judge import Judge, Judgement, Pair
from inflight.evaluate.metrics import JUDGE, Metric, Statistics
from inflight.evaluate.statistics import total, value_interval

_NOT_SHOWN = Judgement({}, "row_invalid")
"""Of a row that the rubric can't show."""
SEED = 0
"""Of the samples of each bootstrap, so that the same rows have the same interval."""


@dataclass(frozen=True)
class Scoring:
    """What an evaluation measures, of which job."""

    directory: EvaluationDirectory
    job: Job
    metrics: Sequence[Metric]
    reference: str | None
    choices: str | None = None
    """The column with a row's choices, for metrics of choices."""
    judge: Judge | None = None
    """Who judges, for the metric of that name."""

    def golden(self) -> Iterator[GoldenRow]:
        """Yield the rows of the golden set. Raises BatchError, as `read_golden` does."""
        most = min(metric.references for metric in self.metrics)
        return read_golden(self.job, self.reference, most, self.choices)

    def check_golden(self) -> GoldenSet:
        """Return the golden set, all of whose rows can be sent and scored. Raises BatchError `input_invalid`, and those
        of the input."""
        if self.reference is None and (needy := [metric.name for metric in self.metrics if metric.needs_reference]):
            raise BatchError(
                f"the metric {needy[0]} needs --reference COLUMN, the column of the golden set with the right answers",
                "input_invalid",
            )
        if self.judge is not None:
            self.judge.template()
        found, ids = GoldenSet(), set[str]()
        for row in self.golden():
            found.add(row)
            if row.id in ids:
                raise self._refused(row, f"has the id {row.id} of an earlier one; give each row its own")
            ids.add(row.id)
            try:
                for metric in self.metrics:
                    for reference in row.references:
                        metric.check(reference)
            except InflightError as error:
                raise self._refused(row, f"has a reference without a meaning: {error}") from None
        return found

    def _refused(self, row: GoldenRow, why: str) -> BatchError:
        return BatchError(f"line {row.line} of {self.job.input.shown} {why}", "input_invalid")

    def begin(self) -> None:
        """Check the golden set, and bind the directory to it.

        Raises BatchError as `check_golden` does, and `input_changed` if the directory is that of another golden set.
        """
        found = self.check_golden()
        if not self._is_bound(found):
            with map_disk_errors(self.directory.path):
                make_directory(self.directory.path)
            self._write(Evaluation(version=__version__, golden=self._summary(found), metrics=self._metrics({})))

    def judge_job(self) -> Job | None:
        """Return the job in which the judge compares the answers of the finished job with the references, if there is a
        judge, and an answer; its rows are written. Raises BatchError."""
        if self.judge is None:
            return None
        pairs = (
            Pair(number, row.request, answer.content or "", row.references[0], row.values)
            for number, (row, answer) in enumerate(self._answers())
            if isinstance(answer, AnswerRecord)
        )
        return self.judge.job(pairs, self.directory.path)

    def score(self) -> Evaluation:
        """Score the answers of the finished job, and of the judge's; write the scores and the evaluation.

        Raises BatchError: `job_running` if another process does this, `input_changed`, `scores_alike`, `job_damaged`.
        """
        judged: dict[int, Judgement] = {}
        judge = None
        if self.judge is not None and (job := self.judge_job()) is not None:
            judged = self.judge.judgements(job)
            judge = self.judge.summary(job, judged.values())
        found, codes, alike, cut = GoldenSet(), Counter[str](), self.choices is not None, 0
        measured: dict[str, list[Statistics]] = {metric.name: [] for metric in self.metrics}
        digest = hashlib.sha256()
        with (
            self._job_directory.locked(),
            map_disk_errors(self.directory.path),
            atomic_writer(self.directory.scores, temporary=self.directory.path / ".scores.jsonl") as file,
        ):
            for row, scored in self._scored(judged):
                found.add(row)
                cut += scored.cut
                if scored.statistics is None:
                    codes[scored.code] += 1
                elif alike:
                    alike = len({*scored.answer["log_probs"]}) == 1
                for name, statistics in (scored.statistics or {}).items():
                    measured[name].append(statistics)
                line = orjson.dumps(scored._asdict()) + b"\n"
                digest.update(line)
                file.write(line)
            self._is_bound(found)  # it may have been edited while the job ran
            if alike and found.rows > codes.total():
                raise BatchError(
                    f"all choices of all rows in {self.directory.path} have the same score, so the server's log"
                    " probabilities are not those of the choices; evaluate at another server",
                    "scores_alike",
                )
        manifest = JobManifest.model_validate_json(self._job_directory.manifest.read_bytes())
        evaluation = Evaluation(
            version=__version__,
            golden=self._summary(found),
            metrics=self._metrics(measured, judge),
            finished=True,
            scored=found.rows - codes.total(),
            codes=dict(sorted(codes.items())),
            cut=cut,
            scores_sha256=digest.hexdigest(),
            model=manifest.fingerprints.model,
            job=manifest.job | {"run_options": self.job.run_options.model_dump(mode="json")},
            seconds=manifest.times.seconds,
            judge=judge,
        )
        self._write(evaluation)
        return evaluation

    def _is_bound(self, found: GoldenSet) -> bool:
        """Return whether the directory is that of this golden set, or a new one. Raises BatchError `input_changed`."""
        before = self.directory.read_any()
        if before is not None and before.golden.sha256 != found.sha256:
            raise BatchError(
                f"{self.directory.path} holds answers to another golden set than {self.job.input.shown} is now; restore"
                " it and its options, or give another --out",
                "input_changed",
            )
        return before is not None

    @property
    def _job_directory(self) -> JobDirectory:
        return JobDirectory.from_output(self.job.output)

    def _scored(self, judged: Mapping[int, Judgement]) -> Iterator[tuple[GoldenRow, RowScore]]:
        """Yield each row of the golden set with its scores. Raises BatchError as `_answers` does."""
        for number, (row, answer) in enumerate(self._answers()):
            code, verdict = "", None
            if not isinstance(answer, AnswerRecord):
                code = answer
            elif self.judge is not None:
                judgement = judged.get(number, _NOT_SHOWN)
                code, verdict = judgement.code, judgement.value
            if isinstance(answer, AnswerRecord) and not code:
                yield row, self._score(row, answer, verdict)
            else:
                yield row, RowScore(row.id, row.digest, None, None, None, list(row.references), code)

    def _answers(self) -> Iterator[tuple[GoldenRow, AnswerRecord | str]]:
        """Yield each row of the golden set with its answer, or the code of why it has none. Raises BatchError
        `job_damaged` if a row has no record."""
        files = self._job_directory.result_files()
        answers = read_answer_records(files.get(RowStatus.OK), self.job.task)  # in the order of the input
        failures = dict(_failures(files))
        answer = next(answers, None)
        for row in self.golden():
            if answer is not None and str(answer.id) == row.id:
                yield row, answer
                answer = next(answers, None)
            elif (code := failures.get(row.id)) is not None:
                yield row, code
            else:
                raise BatchError(
                    f"the row {row.id} has no record in {self.directory.path}; check the job with `inflight batch"
                    " verify`",
                    "job_damaged",
                )

    def _score(self, row: GoldenRow, answer: AnswerRecord, verdict: float | None) -> RowScore:
        content = answer.values if self.job.task == "score" else answer.content or ""
        measured = {
            metric.name: [*metric.measure(verdict if metric.name == JUDGE else content, row.references)]
            for metric in self.metrics
        }
        scores = {metric.name: metric.row_value(measured[metric.name]) for metric in self.metrics}
        references = list(row.references)
        tokens = None if self.job.defaults.top_log_probs is None else answer.kept.get(TOKENS)
        cut = answer.values.get("finish_reason") == "length"
        return RowScore(row.id, row.digest, scores, measured, content, references, tokens=tokens, cut=cut)

    def _summary(self, found: GoldenSet) -> GoldenSummary:
        return GoldenSummary(
            address=self.job.input.shown, sha256=found.sha256, rows=found.rows, reference=self.reference
        )

    def _metrics(
        self, measured: dict[str, list[Statistics]], judge: JudgeSummary | None = None
    ) -> tuple[MetricSummary, ...]:
        found = (_summarize(metric, measured.get(metric.name, ())) for metric in self.metrics)
        if judge is None:
            return tuple(found)
        signature = f"judge|rubric:{hashlib.sha256(judge.rubric.encode()).hexdigest()[:12]}|model:{judge.model}"
        return tuple(each.model_copy(update={"signature": signature}) if each.name == JUDGE else each for each in found)

    def _write(self, evaluation: Evaluation) -> None:
        with map_disk_errors(self.directory.path):
            write_atomic(self.directory.summary, evaluation.model_dump_json(indent=2).encode() + b"\n")


def _summarize(metric: Metric, measured: Sequence[Statistics]) -> MetricSummary:
    if not measured:
        return MetricSummary(name=metric.name, signature=metric.signature)
    table = np.array(measured)
    interval = value_interval(metric, table, SEED)
    return MetricSummary(
        name=metric.name,
        signature=metric.signature,
        rows=len(table),
        value=metric.aggregate(total(table)),
        low=interval.low,
        high=interval.high,
    )


def _failures(files: dict[RowStatus, Path]) -> Iterator[tuple[str, str]]:
    """Yield the ids and codes of rows without an answer."""
    for status in (RowStatus.ERROR, RowStatus.DEAD):
        for line in read_lines(files.get(status)):
            values = orjson.loads(line)
            error = values.get("error") or (values.get("response") or {}).get("body", {}).get("error") or {}
            yield str(values.get("custom_id", values.get("id"))), str(values.get("code") or error.get("code"))
