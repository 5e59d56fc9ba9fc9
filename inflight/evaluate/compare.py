"""Comparison of two evaluations of the same rows: is the second one better, equivalent or worse?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from statistics import median
from typing import Any

import numpy as np

from inflight.batch.errors import BatchError
from inflight.evaluate.evaluation import Evaluation, EvaluationDirectory, RowScore, Token
from inflight.evaluate.metrics import Metric, Statistics, likeliest, load_metrics
from inflight.evaluate.statistics import Change, Verdict, adjust, change, overall, verdict

Pair = tuple[RowScore, RowScore]


@dataclass(frozen=True)
class MetricComparison:
    """What became of a metric, and the verdict at the margin."""

    metric: Metric
    change: Change
    verdict: Verdict


@dataclass(frozen=True)
class Drift:
    """Where answers part, in the `rows` that have other tokens: medians of the number of equal tokens before that, and
    of the `gap`, how much likelier the first model's own token was there than the other one, as log probabilities of
    the first model. `ties`: the rows with a gap below 0.1, where either token was about as likely."""

    rows: int
    equal_tokens: float
    gap: float
    ties: int

    @classmethod
    def of(cls, partings: Sequence[tuple[int, float]]) -> Drift | None:
        if not partings:
            return None
        gaps = [gap for _, gap in partings]
        ties = sum(gap < _TIE for gap in gaps)
        return cls(len(partings), median(place for place, _ in partings), median(gaps), ties)


_TIE = 0.1


def parting(before: Sequence[Token], after: Sequence[Token]) -> tuple[int, float] | None:
    """Return how many tokens are equal, and the gap at the next one; None if one answer begins with the other, or no
    other token is known. A token that is not among the likeliest counts as the last of them."""
    for place, ((token, log_prob, top), (other, *_)) in enumerate(zip(before, after, strict=False)):
        if token != other:
            if not {*top} - {str(token)}:  # how likely any other was is unknown
                return None
            return place, log_prob - top.get(str(other), min(top.values(), default=log_prob))
    return None


@dataclass(frozen=True)
class Comparison:
    """Two evaluations, of which `before` is the baseline. `changed_answers` is the number of rows whose text, or
    choice, differs, of the `rows` that both answered; `notes` say what else differs."""

    before: EvaluationDirectory
    after: EvaluationDirectory
    margin: float
    metrics: tuple[MetricComparison, ...]
    rows: int
    failed: int
    changed_answers: int
    drift: Drift | None
    notes: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        return overall([each.verdict for each in self.metrics])

    @property
    def exit_code(self) -> int:
        """0: better or equivalent; 1: worse; 75: these rows are too few to tell."""
        return {Verdict.WORSE: 1, Verdict.UNKNOWN: 75}.get(self.verdict, 0)

    def as_json(self) -> dict[str, Any]:
        metrics = {
            each.metric.name: {"verdict": each.verdict, **asdict(each.change), "churn": each.change.churn}
            for each in self.metrics
        }
        return {
            "verdict": self.verdict,
            "before": str(self.before.path),
            "after": str(self.after.path),
            "margin": self.margin,
            "rows": self.rows,
            "failed": self.failed,
            "changed_answers": self.changed_answers,
            "drift": None if self.drift is None else asdict(self.drift),
            "metrics": metrics,
            "notes": self.notes,
        }


def compare(before: EvaluationDirectory, after: EvaluationDirectory, margin: float, seed: int = 0) -> Comparison:
    """Compare two evaluations at a margin in points. Raises BatchError `evaluations_differ` for evaluations of other
    rows or metrics, `evaluation_not_found` and `evaluation_damaged`."""
    first, second = before.read(), after.read()
    _check_metrics(first, second)
    metrics = load_metrics([each.name for each in first.metrics])
    statistics: dict[str, tuple[list[Statistics], list[Statistics]]] = {metric.name: ([], []) for metric in metrics}
    rows = failed = changed = 0
    partings: list[tuple[int, float]] = []
    for old, new in _pairs(before.read_scores(first), after.read_scores(second)):
        if old.statistics is None or new.statistics is None:
            failed += 1
            continue
        rows, changed = rows + 1, changed + (_shown(old) != _shown(new))
        if "perplexity" in statistics and old.answer["tokens"] != new.answer["tokens"]:
            raise _differ(
                f"the row {old.id} has {sum(old.answer['tokens'])} tokens in the first one and"
                f" {sum(new.answer['tokens'])} in the other, so their perplexities are of different tokenizers"
            )
        if old.tokens and new.tokens and (found := parting(old.tokens, new.tokens)) is not None:
            partings.append(found)
        for name, (olds, news) in statistics.items():
            olds.append(old.statistics[name])
            news.append(new.statistics[name])
    if not rows:
        raise BatchError("no row has an answer in both evaluations; send the failed rows again", "evaluations_differ")
    tables = [[np.array(side) for side in statistics[metric.name]] for metric in metrics]
    many = len(metrics)
    changes = [change(metric, old, new, seed, many) for metric, (old, new) in zip(metrics, tables, strict=True)]
    ps = adjust([each.p for each in changes])
    changes = [replace(each, p=p) for each, p in zip(changes, ps, strict=True)]
    judged = tuple(
        MetricComparison(metric, each, verdict(metric, each, margin))
        for metric, each in zip(metrics, changes, strict=True)
    )
    drift, notes = Drift.of(partings), tuple(_notes(first, second))
    return Comparison(before, after, margin, judged, rows, failed, changed, drift, notes)


def _shown(row: RowScore) -> Any:
    """Return the answer as people see it: a text, or the likeliest choice."""
    return row.answer if isinstance(row.answer, str) else likeliest(row.answer)


def _check_metrics(first: Evaluation, second: Evaluation) -> None:
    ours, theirs = ({each.name: each.signature for each in one.metrics} for one in (first, second))
    if ours != theirs:
        name = next(iter(sorted(ours.items() ^ theirs.items())))[0]
        first_one, other = (metrics.get(name, "missing") for metrics in (ours, theirs))
        raise _differ(f"the metric {name} is {first_one} in the first one and {other} in the other")
    if first.golden.reference != second.golden.reference:
        raise _differ(
            f"--reference is {first.golden.reference} in the first one, {second.golden.reference} in the other"
        )


def _pairs(first: Iterator[RowScore], second: Iterator[RowScore]) -> Iterator[Pair]:
    """Yield the rows of both. Raises BatchError for another row, another order, and a row that has an answer in one of
    them alone."""
    for number, (old, new) in enumerate(zip_longest(first, second), 1):
        if old is None or new is None:
            left = old or new
            assert left is not None
            raise _differ(f"the row {left.id} is missing in {'the first one' if old is None else 'the other'}")
        if old.id != new.id:
            raise _differ(f"row {number} is {old.id} in the first one, and {new.id} in the other")
        if old.row != new.row:
            raise _differ(f"the row {old.id} has other values in one than in the other")
        if (old.statistics is None) != (new.statistics is None):
            where = "the first one" if old.statistics is None else "the other"
            raise _differ(
                f"the row {old.id} has no answer in {where} ({old.code or new.code})",
                "send it again with `inflight batch retry` and repeat `inflight evaluate run`, or remove it from both",
            )
        yield old, new


def _differ(what: str, remedy: str = "evaluate both with the same golden set and options") -> BatchError:
    return BatchError(f"the evaluations can't be compared: {what}; {remedy}", "evaluations_differ")


_ASKED = ("input", "defaults", "encode", "retrieval", "refine")


def _notes(first: Evaluation, second: Evaluation) -> Iterator[str]:
    """Yield what else is not the same: a change of a prompt may be what is compared, or a mistake."""
    for part in _ASKED:
        ours, theirs = (one.job.get(part) or {} for one in (first, second))
        if names := [name for name in sorted({*ours, *theirs} - {"address"}) if ours.get(name) != theirs.get(name)]:
            yield f"the jobs differ in {part}: {', '.join(names)}"
    if first.model and first.model == second.model:
        yield "both were answered by the same build of the model"
