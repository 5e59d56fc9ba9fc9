"""The page of a comparison: which figures changed, by how much, and whether that is a regression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loadtests.analysis.comparison.compare import Change, ChangeVerdict, Comparison
from loadtests.report.chart import Chart, axis, legend, legend_below, rounded
from loadtests.report.formats import NOTHING, count, number, percent, seconds, text
from loadtests.report.tables import Cell, Row, Table

_COLOURS = {
    ChangeVerdict.BETTER: ("--green", "circle"),
    ChangeVerdict.WORSE: ("--red", "x"),
    ChangeVerdict.NOT_SHOWN: ("--grey", "circle-open"),
    ChangeVerdict.TOO_FEW: ("--grey", "circle-open"),
    ChangeVerdict.DIFFERENT_PLANS: ("--grey", "circle-open"),
    ChangeVerdict.BUNCHED: ("--grey", "circle-open"),
}
_ROW = 34


def comparison_headline(comparison: Comparison) -> str:
    """Return one sentence with the regressions or, without any, the other changes."""
    if comparison.plans_differ:
        return "The runs have different plans, so no change is judged."
    regressions = comparison.regressions
    if regressions:
        listed = "; ".join(
            f"{text(change.metric)} {change_text(change)} ({interval_text(change)})" for change in regressions
        )
        return f"{count(len(regressions), 'regression')} beyond {_threshold(comparison)}: {listed}."
    better = [change for change in comparison.changes if change.verdict is ChangeVerdict.BETTER]
    worse = [change for change in comparison.changes if change.verdict is ChangeVerdict.WORSE]
    parts = [
        f"{words}: " + ", ".join(f"{text(change.metric)} {change_text(change)}" for change in changes)
        for words, changes in (("better", better), ("worse, but not significantly beyond that", worse))
        if changes
    ]
    if comparison.inconclusive:
        parts.insert(0, "there are too few requests to judge most figures")
        return f"Inconclusive: {'; '.join(parts)}."
    start = f"No regression beyond {_threshold(comparison)} was shown"
    return f"{start}; {'; '.join(parts)}." if parts else f"{start}, nor any other change."


def change_text(change: Change) -> str:
    """Return the change of a figure with its sign.

    Shares change by percentage points: from 1% to 3% is +2 points.
    """
    return _signed(change, change.change)


def interval_text(change: Change) -> str:
    """Return the ends of a change's interval."""
    if change.low is None or change.high is None:
        return NOTHING
    return f"{_signed(change, change.low).removesuffix(' points')} to {_signed(change, change.high)}"


def changes_table(comparison: Comparison) -> Table:
    rows: list[Row] = [
        [
            text(change.metric),
            _value(change, change.before),
            _value(change, change.after),
            change_text(change),
            interval_text(change),
            f"{change.samples_before:,} / {change.samples_after:,}",
            _verdict(change),
        ]
        for change in comparison.changes
    ]
    interval = f"{percent(comparison.confidence)} interval"
    return Table(("figure", "before", "after", "change", interval, "samples", "verdict"), rows)


def notes(comparison: Comparison) -> list[str]:
    return [f"{text(change.metric)}: {text(change.note)}" for change in comparison.changes if change.note]


def change_charts(comparison: Comparison) -> Iterator[Chart]:
    """Yield charts of the changes with their intervals; relative changes and shares have separate axes."""
    charts = (
        ("changes", "Latencies and throughput", True, "change in %", comparison.threshold),
        ("points", "Shares", False, "change in percentage points", comparison.points),
    )
    for name, title, relative, unit, threshold in charts:
        changes = [change for change in comparison.changes if change.relative is relative and change.low is not None]
        if changes:
            yield _chart(name, title, changes, unit, threshold)


def _chart(name: str, title: str, changes: Sequence[Change], unit: str, threshold: float) -> Chart:
    """Return a chart with one row per figure, the first at the top; the range within the threshold is shaded."""
    data: list[dict[str, Any]] = []
    for verdict, (colour, symbol) in _COLOURS.items():
        group = [change for change in changes if change.verdict is verdict]
        if not group:
            continue
        middle = [_percent(change, change.change) for change in group]
        ends = [(_percent(change, change.low), _percent(change, change.high)) for change in group]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": verdict.label,
                "showlegend": True,
                "x": middle,
                "y": [text(change.metric) for change in group],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [rounded(high - at) for at, (_, high) in zip(middle, ends, strict=True)],
                    "arrayminus": [rounded(at - low) for at, (low, _) in zip(middle, ends, strict=True)],
                    "color": colour,
                    "thickness": 2,
                },
                "marker": {"color": colour, "symbol": symbol, "size": 9, "opacity": 1},
                "customdata": [f"{change_text(change)} ({interval_text(change)})" for change in group],
                "hovertemplate": "%{y}: %{customdata}<extra></extra>",
            }
        )
    near = {"type": "rect", "x0": -100 * threshold, "x1": 100 * threshold, "yref": "paper", "y0": 0, "y1": 1}
    zero = {"type": "line", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1}
    names = [text(change.metric) for change in changes]
    layout = {
        "hovermode": "closest",
        "xaxis": axis(unit),
        "yaxis": axis(
            type="category", categoryorder="array", categoryarray=names[::-1], range=[-0.6, len(names) - 0.4]
        ),
        "legend": legend(),
        "shapes": [
            {**near, "fillcolor": "--shade", "line": {"width": 0}, "layer": "below"},
            {**zero, "line": {"color": "--axis", "width": 1}, "layer": "below"},
        ],
    }
    height = len(names) * _ROW + 90
    return Chart(name, title, data, layout, height, legend_below(height, len(data)))


def _percent(change: Change, value: float | None) -> float:
    """Return a change as the chart shows it: percent of the value before, or percentage points."""
    return 0.0 if value is None else float(f"{100 * (value - 1 if change.relative else value):.5g}")


def _signed(change: Change, value: float | None) -> str:
    if value is None:
        return NOTHING
    percent = _percent(change, value)
    sign = "+" if percent > 0 else "-" if percent < 0 else "±"
    return f"{sign}{number(abs(percent))}{'%' if change.relative else ' points'}"


def _threshold(comparison: Comparison) -> str:
    shares = any(not change.relative for change in comparison.changes)
    return percent(comparison.threshold) + (f" (shares: by {percent(comparison.points)} of all)" if shares else "")


def _value(change: Change, value: float | None) -> str:
    if change.unit == "s":
        return seconds(value)
    return percent(value) if change.unit == "share" else f"{number(value)} {text(change.unit)}"


def _verdict(change: Change) -> Cell:
    if change.regression:
        return Cell("regression", "bad")
    return Cell(change.verdict.label, "good" if change.verdict is ChangeVerdict.BETTER else "")
