"""The page of a comparison: which figures changed, by how much, and whether that is a regression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loadtests.analysis.comparison.result import Change, ChangeVerdict, Comparison
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
    if comparison.threshold is None:
        return _servers_headline(comparison)
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


def _servers_headline(comparison: Comparison) -> str:
    """Return which of two servers is better in what."""
    parts = []
    for verdict in (ChangeVerdict.WORSE, ChangeVerdict.BETTER):
        found = [change for change in comparison.changes if change.verdict is verdict]
        listed = ", ".join(f"{text(change.metric)} {change_text(change)}" for change in found)
        parts += [f"{comparison.label(verdict)}: {listed}"] if found else []
    if comparison.inconclusive:
        parts.insert(0, "there are too few requests to judge most figures")
    if not parts:
        return "No difference between the servers was shown."
    words = "; ".join(parts)
    return f"{words[:1].upper()}{words[1:]} (differences of {comparison.names[1]}, relative to {comparison.names[0]})."


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


def changes_table(comparison: Comparison, with_intervals: bool = False) -> Table:
    """Return all figures; `with_intervals`: each side's own interval too."""
    rows: list[Row] = [
        [
            text(change.metric),
            _side_value(change, change.before, change.before_interval if with_intervals else None),
            _side_value(change, change.after, change.after_interval if with_intervals else None),
            change_text(change),
            interval_text(change),
            f"{change.samples_before:,} / {change.samples_after:,}",
            _verdict(comparison, change),
        ]
        for change in comparison.changes
    ]
    interval = f"{percent(comparison.confidence)} interval"
    return Table(("figure", *comparison.names, _change_name(comparison), interval, "samples", "verdict"), rows)


def _change_name(comparison: Comparison) -> str:
    return "change" if comparison.threshold is not None else "difference"


def notes(comparison: Comparison) -> list[str]:
    return [f"{text(change.metric)}: {text(change.note)}" for change in comparison.changes if change.note]


def change_charts(comparison: Comparison) -> Iterator[Chart]:
    """Yield charts of the changes with their intervals; relative changes and shares have separate axes."""
    charts = (
        ("changes", "Latencies and throughput", True, "%", comparison.threshold),
        (
            "points",
            "Shares",
            False,
            "percentage points",
            None if comparison.threshold is None else comparison.points,
        ),
    )
    for name, title, relative, unit, threshold in charts:
        changes = [change for change in comparison.changes if change.relative is relative and change.low is not None]
        if changes:
            yield _chart(comparison, name, title, changes, unit, threshold)


def _chart(
    comparison: Comparison, name: str, title: str, changes: Sequence[Change], unit: str, threshold: float | None
) -> Chart:
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
                "name": comparison.label(verdict),
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
    margin = 100 * (threshold or 0)
    near = {"type": "rect", "x0": -margin, "x1": margin, "yref": "paper", "y0": 0, "y1": 1}
    zero = {"type": "line", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1}
    names = [text(change.metric) for change in changes]
    layout = {
        "hovermode": "closest",
        "xaxis": axis(f"{_change_name(comparison)} in {unit}"),
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


def _side_value(change: Change, value: float | None, ends: tuple[float, float] | None) -> str:
    """Return a side's figure, with its interval if there is one: `120 ms (115 ms to 130 ms)`."""
    words = _value(change, value)
    if value is None or ends is None:
        return words
    low, high = (_value(change, end).removesuffix(f" {change.unit}") for end in ends)
    return f"{words} ({low} to {high})"


def _verdict(comparison: Comparison, change: Change) -> Cell:
    if change.regression:
        return Cell("regression", "bad")
    better = change.verdict is ChangeVerdict.BETTER and comparison.threshold is not None
    return Cell(comparison.label(change.verdict), "good" if better else "")
