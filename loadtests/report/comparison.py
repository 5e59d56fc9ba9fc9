"""What a comparison's page says: which figures really changed, by how much, and whether that is a regression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loadtests.analysis.comparison import Change, Comparison, Verdict
from loadtests.report.chart import Chart, axis, legend, legend_below, rounded
from loadtests.report.formats import NOTHING, count, number, seconds, share, text
from loadtests.report.table import Cell, Row, Table

_COLOURS = {
    Verdict.BETTER: ("--green", "circle"),
    Verdict.WORSE: ("--red", "x"),
    Verdict.NOT_SHOWN: ("--grey", "circle-open"),
    Verdict.TOO_FEW: ("--grey", "circle-open"),
    Verdict.UNLIKE: ("--grey", "circle-open"),
    Verdict.BUNCHED: ("--grey", "circle-open"),
}
_ROW = 34


def comparison_headline(comparison: Comparison) -> str:
    """Whether there is a regression and of what, or else what changed, in one sentence."""
    if comparison.unlike:
        return "The runs have different plans, so no change is judged."
    found = comparison.regressions
    if found:
        said = "; ".join(f"{text(change.metric)} {moved(change)} ({between(change)})" for change in found)
        return f"{count(len(found), 'regression')} beyond {_threshold(comparison)}: {said}."
    better = [change for change in comparison.changes if change.verdict is Verdict.BETTER]
    worse = [change for change in comparison.changes if change.verdict is Verdict.WORSE]
    told = [
        f"{words}: " + ", ".join(f"{text(change.metric)} {moved(change)}" for change in changes)
        for words, changes in (("better", better), ("worse, but not surely by more than that", worse))
        if changes
    ]
    start = f"No regression beyond {_threshold(comparison)} was shown"
    return f"{start}; {'; '.join(told)}." if told else f"{start}, nor any other change."


def moved(change: Change) -> str:
    """By how much a figure changed, with its sign.

    Shares change by points: from 1% to 3% is +2 points.
    """
    return _signed(change, change.change)


def between(change: Change) -> str:
    """The ends of a change's interval."""
    if change.low is None or change.high is None:
        return NOTHING
    return f"{_signed(change, change.low).removesuffix(' points')} to {_signed(change, change.high)}"


def changes_table(comparison: Comparison) -> Table:
    rows: list[Row] = [
        [
            text(change.metric),
            _value(change, change.before),
            _value(change, change.after),
            moved(change),
            between(change),
            f"{change.samples_before:,} / {change.samples_after:,}",
            _verdict(change),
        ]
        for change in comparison.changes
    ]
    interval = f"{share(comparison.confidence)} interval"
    return Table(("figure", "before", "after", "change", interval, "samples", "verdict"), rows)


def notes(comparison: Comparison) -> list[str]:
    return [f"{text(change.metric)}: {text(change.note)}" for change in comparison.changes if change.note]


def change_charts(comparison: Comparison) -> Iterator[Chart]:
    """Each change with its interval, relative ones and shares apart, for they have axes of their own."""
    told = (
        ("changes", "Latencies and throughput", True, "change in %", comparison.threshold),
        ("points", "Shares", False, "change in points (hundredths of all)", comparison.points),
    )
    for name, title, relative, unit, threshold in told:
        found = [change for change in comparison.changes if change.relative is relative and change.low is not None]
        if found:
            yield _chart(name, title, found, unit, threshold)


def _chart(name: str, title: str, changes: Sequence[Change], unit: str, threshold: float) -> Chart:
    """One row for each figure, the first at the top; what lies within the threshold either way is shaded."""
    data: list[dict[str, Any]] = []
    for verdict, (colour, symbol) in _COLOURS.items():
        found = [change for change in changes if change.verdict is verdict]
        if not found:
            continue
        middle = [_percent(change, change.change) for change in found]
        ends = [(_percent(change, change.low), _percent(change, change.high)) for change in found]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": verdict.words,
                "showlegend": True,
                "x": middle,
                "y": [text(change.metric) for change in found],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [rounded(high - at) for at, (_, high) in zip(middle, ends, strict=True)],
                    "arrayminus": [rounded(at - low) for at, (low, _) in zip(middle, ends, strict=True)],
                    "color": colour,
                    "thickness": 2,
                },
                "marker": {"color": colour, "symbol": symbol, "size": 9, "opacity": 1},
                "customdata": [f"{moved(change)} ({between(change)})" for change in found],
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
    """A change as the chart has it: per cent of before, or points."""
    return 0.0 if value is None else float(f"{100 * (value - 1 if change.relative else value):.5g}")


def _signed(change: Change, value: float | None) -> str:
    if value is None:
        return NOTHING
    percent = _percent(change, value)
    sign = "+" if percent > 0 else "-" if percent < 0 else "±"
    return f"{sign}{number(abs(percent))}{'%' if change.relative else ' points'}"


def _threshold(comparison: Comparison) -> str:
    shares = any(not change.relative for change in comparison.changes)
    return share(comparison.threshold) + (f" (shares: by {share(comparison.points)} of all)" if shares else "")


def _value(change: Change, value: float | None) -> str:
    if change.unit == "s":
        return seconds(value)
    return share(value) if change.unit == "share" else f"{number(value)} {text(change.unit)}"


def _verdict(change: Change) -> Cell:
    if change.regression:
        return Cell("regression", "bad")
    return Cell(change.verdict.words, "good" if change.verdict is Verdict.BETTER else "")
