"""The files of an evaluation: `evaluation.json` and `scores.jsonl`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from inflight.batch.errors import BatchError, map_disk_errors
from inflight.common.atomic_files import write_atomic


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class GoldenSummary(_Record):
    """The golden set. `sha256`: of its ids, values and order; `reference`: the column of the references."""

    address: str
    sha256: str
    rows: int
    reference: str | None


class MetricSummary(_Record):
    """A metric over all rows that have an answer; `low` and `high` are its 95% interval. None if no row has one."""

    name: str
    signature: str
    rows: int = 0
    value: float | None = None
    low: float | None = None
    high: float | None = None


class JudgeSummary(_Record):
    """A judge, and how far it can be believed. `model`: the build that judged. `agreement`: the share of the `pairs`
    with the same verdict in both orders. `prefers_first`: its mean verdict for the answer shown first, from 0 to 1; at
    0.5 it has no preference for a place."""

    job: dict[str, Any]
    rubric: str
    model: str | None
    pairs: int
    agreement: float | None
    prefers_first: float | None


class Evaluation(_Record):
    """`evaluation.json`. `model` is the fingerprint of the build that answered, `job` the job as in its
    manifest; `codes` are the rows without an answer by code, `cut` the number of answers that end at their limit of
    tokens. Not `finished`: the job has rows left."""

    version: str
    golden: GoldenSummary
    metrics: tuple[MetricSummary, ...]
    finished: bool = False
    scored: int = 0
    codes: dict[str, int] = {}
    cut: int = 0
    scores_sha256: str = ""
    model: str | None = None
    job: dict[str, Any] = {}
    seconds: float = 0.0
    """Of the job."""
    judge: JudgeSummary | None = None


Token = tuple[int, float, dict[str, float]]
"""A token's id, its log probability, and those of the likeliest ones by id."""


class RowScore(NamedTuple):
    """A line of `scores.jsonl`. `scores` and `statistics` are by metric, None for a row without an answer, whose `code`
    says why. `answer`: a text, or what a job of the task `score` wrote; `cut`: it ends at its limit of tokens."""

    id: str
    row: str
    scores: dict[str, float] | None
    statistics: dict[str, list[float]] | None
    answer: Any
    references: list[str]
    code: str = ""
    tokens: list[Token] | None = None
    """With --top-log-probs."""
    cut: bool = False


class EvaluationDirectory:
    """The directory of an evaluation, in which `answers.jsonl` is the output of its job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers, self.scores = path / "answers.jsonl", path / "scores.jsonl"
        self.summary, self.report = path / "evaluation.json", path / "report.html"

    def read(self) -> Evaluation:
        """Return the finished evaluation. Raises BatchError `evaluation_not_found`, `evaluation_damaged`."""
        found = self.read_any()
        if found is None or not found.finished:
            raise BatchError(
                f"there is no finished evaluation at {self.path}; make it with `inflight evaluate run`",
                "evaluation_not_found",
            )
        return found

    def read_any(self) -> Evaluation | None:
        """Return the evaluation, finished or not, or None. Raises BatchError `evaluation_damaged`."""
        try:
            return Evaluation.model_validate_json(self.summary.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValidationError) as error:
            raise BatchError(
                f"{self.summary} is not an evaluation ({str(error).splitlines()[0]}); run the evaluation again",
                "evaluation_damaged",
            ) from None

    def read_scores(self, evaluation: Evaluation) -> Iterator[RowScore]:
        """Yield the scores of the rows. Raises BatchError `evaluation_damaged` if they are not as they were written."""
        try:
            with self.scores.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != evaluation.scores_sha256:
                    raise self._changed("its hash is not that of evaluation.json")
                file.seek(0)
                for line in file:
                    yield RowScore(**orjson.loads(line))
        except (OSError, ValueError, TypeError) as error:
            raise self._changed(str(error)) from None

    def write_report(self, page: str) -> None:
        """Raises BatchError `disk_full`, `job_failed`."""
        with map_disk_errors(self.path):
            write_atomic(self.report, page)

    def _changed(self, why: str) -> BatchError:
        return BatchError(
            f"{self.scores} is not as the evaluation wrote it ({why}); repeat `inflight evaluate run` with the same"
            " --out, which writes it again",
            "evaluation_damaged",
        )
