"""Throughput against latency: what a little more load costs those who wait."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.analysis.summary import Bound, Spread
from loadtests.report.bounds import bound_text, quantities, statistic, strictest
from loadtests.report.chart import Chart, axis, limit_line, line, rounded, time_unit
from loadtests.report.formats import number
from loadtests.report.tables import LATENCIES

_WIDE = 30
"""From so many times the least latency on, only a logarithmic axis shows both."""


@dataclass(frozen=True)
class Point:
    """One level of load, called `name` in the chart; `kept`: whether the promise was, None where none was given."""

    name: str
    tokens_per_second: float
    latencies: Mapping[str, Spread]
    kept: bool | None = None
    best: bool = False
    """The highest load at which the promise was kept."""


def trade_off_charts(points: Sequence[Point], promise: Sequence[Bound]) -> Iterator[Chart]:
    """For TTFT, ITL and what else is promised, the points in the order of their load; none for one point alone."""
    measured = [name for name in LATENCIES if sum(name in point.latencies for point in points) > 1]
    wanted = {"ttft", "itl", *quantities(promise)}
    for name in [name for name in measured if name in wanted] or measured[:1]:
        found = [point for point in points if name in point.latencies]
        yield _chart(name, found, strictest(promise, name))


def _chart(name: str, points: Sequence[Point], bound: Bound | None) -> Chart:
    """The median, and the percentile that the promise is about; without one the 99th."""
    upper = (statistic(bound) if bound else "") or "p99"
    highest = [float(getattr(point.latencies[name], upper)) for point in points]
    lowest = [point.latencies[name].p50 for point in points]
    x = [rounded(point.tokens_per_second) for point in points]
    unit = time_unit(highest)
    logarithmic = min(lowest) > 0 and max(highest) > _WIDE * min(lowest)
    template = f"%{{customdata}}: %{{y:,.4~r}} {unit.name} at %{{x:,.4~r}} tokens/s"
    hover: dict[str, Any] = {"customdata": [point.name for point in points], "hovertemplate": template}
    data = [line(_called(upper), x, unit.of(highest), "--blue", mode="lines+markers", marker=_marks(points), **hover)]
    if upper != "p50":
        data.insert(0, line("p50", x, unit.of(lowest), "--blue", dash="dot", mode="lines+markers", **hover))
    limit = bound.limit * unit.factor if bound and statistic(bound) else None
    marks = limit_line(limit, f"limit: {bound_text(bound)}" if bound else "", logarithmic=logarithmic)
    for place, point in enumerate(points):
        if point.best:
            note = _best(point, x[place], unit.of(highest)[place] or 0.0, logarithmic)
            marks["annotations"] = [*marks.get("annotations", ()), note]
    layout = {
        "hovermode": "closest",
        "xaxis": axis("output tokens/s", rangemode="tozero"),
        "yaxis": axis(unit.name, **({"type": "log", "dtick": "D2"} if logarithmic else {"rangemode": "tozero"})),
        "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom"},
        **marks,
    }
    return Chart(f"trade-off-{name}", f"{LATENCIES[name]}", data, layout, height=340)


def _called(field: str) -> str:
    return "p99.9" if field == "p999" else field


def _marks(points: Sequence[Point]) -> Mapping[str, Any]:
    """Kept and broken differ in shape as well as in colour."""
    return {
        "size": [14 if point.best else 9 for point in points],
        "symbol": ["star" if point.best else "x" if point.kept is False else "circle" for point in points],
        "color": ["--green" if point.best else "--red" if point.kept is False else "--blue" for point in points],
        "opacity": 1,
    }


def _best(point: Point, x: float | None, y: float, logarithmic: bool) -> Mapping[str, Any]:
    place = {"x": x, "y": math.log10(y) if logarithmic and y > 0 else y, "ax": 0, "ay": -34}
    text = f"highest that kept the promise: {point.name}, {number(point.tokens_per_second)} tokens/s"
    return {**place, "text": text, "showarrow": True, "arrowcolor": "--quiet", "bgcolor": "--card"}
