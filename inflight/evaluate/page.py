"""The page of an evaluation: the distribution of each metric over the rows, and the worst rows side by side."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from inflight.evaluate.evaluation import Evaluation, EvaluationDirectory, MetricSummary, RowScore
from inflight.evaluate.metrics import Metric, likeliest, load_metrics
from loadtests.report.chart import Chart, axis, rounded
from loadtests.report.document import document
from loadtests.report.formats import number, percent, text
from loadtests.report.headline import Tile
from loadtests.report.tables import Table

_TEMPLATES = Path(__file__).parent / "templates"
_WORST = 10
_BINS = 20


def evaluation_page(directory: EvaluationDirectory) -> str:
    """Return the page of a finished evaluation: an HTML document that needs no network and no other file. Raises
    BatchError `evaluation_not_found`, `evaluation_damaged`."""
    evaluation = directory.read()
    metrics = load_metrics([each.name for each in evaluation.metrics if each.rows])
    charts = [_histogram(metric, _values(directory, evaluation, metric.name)) for metric in metrics]
    return document(
        "evaluation.html",
        f"{text(evaluation.golden.address)}: evaluation",
        charts,
        templates=_TEMPLATES,
        name=text(evaluation.golden.address),
        headline=f"{evaluation.scored:,} of {evaluation.golden.rows:,} rows answered",
        tiles=list(map(_tile, evaluation.metrics)),
        figures_shown=charts,
        worst=[(metric.name, _worst(metric, directory.read_scores(evaluation))) for metric in metrics],
        failed=Table(("code", "rows"), [(code, f"{count:,}") for code, count in evaluation.codes.items()]),
        facts=Table(("", ""), _facts(evaluation), words=2),
    )


def _tile(metric: MetricSummary) -> Tile:
    note = "" if metric.low is None else f"95%: {number(metric.low)} to {number(metric.high)}"
    return Tile(metric.name, number(metric.value), note)


def _values(directory: EvaluationDirectory, evaluation: Evaluation, name: str) -> Iterator[float]:
    return (row.scores[name] for row in directory.read_scores(evaluation) if row.scores is not None)


def _histogram(metric: Metric, values: Iterator[float]) -> Chart:
    counts, edges = np.histogram(np.fromiter(values, float), _BINS, (0.0, 1.0) if metric.binary else None)
    bars: dict[str, Any] = {
        "type": "bar",
        "x": [rounded((low + high) / 2) for low, high in pairwise(edges)],
        "y": counts.tolist(),
        "marker": {"color": "--blue"},
        "hovertemplate": "%{y:,} rows at %{x:,.3~r}<extra></extra>",
    }
    layout = {"bargap": 0.05, "xaxis": axis(metric.name), "yaxis": axis("rows", rangemode="tozero")}
    return Chart(f"evaluation-{metric.name}", f"Rows by {metric.name}", [bars], layout)


def _worst(metric: Metric, rows: Iterator[RowScore]) -> Table:
    """Return the rows with the lowest values, or of right and wrong ones the first that are wrong."""
    scored = ((metric.sign * row.scores[metric.name], row) for row in rows if row.scores is not None)
    if metric.binary:
        scored = ((value, row) for value, row in scored if not value)
    worst = heapq.nsmallest(_WORST, scored, key=lambda each: each[0])
    return Table(
        ("row", "reference", "answer", metric.name),
        [
            (text(row.id), text(" | ".join(row.references)), text(_shown(row)), number(metric.sign * value))
            for value, row in worst
        ],
        words=3,
    )


def _shown(row: RowScore) -> str:
    """Return a text, or the place of the choice, or how likely a text is."""
    if isinstance(row.answer, str):
        return row.answer
    if len(row.answer["log_probs"]) > 1:
        return str(likeliest(row.answer))
    return f"{row.answer['log_probs'][0]:.2f} of {row.answer['tokens'][0]:,} tokens"


def _facts(evaluation: Evaluation) -> list[tuple[str, str]]:
    signatures = [(metric.name, text(metric.signature)) for metric in evaluation.metrics]
    return [
        ("golden set", f"sha256 {evaluation.golden.sha256}"),
        ("build of the model", text(evaluation.model or "unknown")),
        ("rows answered", percent(evaluation.scored / max(1, evaluation.golden.rows))),
        ("answers that end at their limit of tokens", f"{evaluation.cut:,}"),
        *signatures,
    ]
