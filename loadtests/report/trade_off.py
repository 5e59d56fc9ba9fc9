"""Throughput against latency: what a little more load costs those who wait."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.analysis.summary import Bound, Spread
from loadtests.report.chart import Chart, axis, limit_line, line, rounded, time_unit
from loadtests.report.curves import limit_of
from loadtests.report.formats import bound_text, number

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
    """For TTFT and ITL each, the points in the order of their load; none where there is one point only."""
    for name, title in (("ttft", "TTFT, from due"), ("itl", "ITL")):
        found = [point for point in points if name in point.latencies]
        if len(found) > 1:
            yield _chart(name, title, found, limit_of(promise, name))


def _chart(name: str, title: str, points: Sequence[Point], bound: Bound | None) -> Chart:
    x = [rounded(point.tokens_per_second) for point in points]
    highest = [point.latencies[name].p99 for point in points]
    lowest = [point.latencies[name].p50 for point in points]
    unit = time_unit(highest)
    logarithmic = min(lowest) > 0 and max(highest) > _WIDE * min(lowest)
    template = f"%{{customdata}}: %{{y:,.4~r}} {unit.name} at %{{x:,.4~r}} tokens/s"
    hover: dict[str, Any] = {"customdata": [point.name for point in points], "hovertemplate": template}
    data: list[dict[str, Any]] = [
        line("p50", x, unit.of(lowest), "--blue", dash="dot", mode="lines+markers", **hover),
        line("p99", x, unit.of(highest), "--blue", mode="lines+markers", marker=_marks(points), **hover),
    ]
    limit = bound.limit * unit.factor if bound else None
    marks = limit_line(limit, f"limit: {bound_text(bound)}" if bound else "", logarithmic=logarithmic)
    best = next((place for place, point in enumerate(points) if point.best), None)
    if best is not None:
        y = unit.of(highest)[best] or 0.0
        marks["annotations"] = [*marks.get("annotations", ()), _best(points[best], x[best], y, logarithmic)]
    layout = {
        "hovermode": "closest",
        "xaxis": axis("output tokens/s", rangemode="tozero"),
        "yaxis": axis(unit.name, **({"type": "log"} if logarithmic else {"rangemode": "tozero"})),
        "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom"},
        **marks,
    }
    return Chart(f"trade-off-{name}", f"{title} against throughput", data, layout, height=340)


def _marks(points: Sequence[Point]) -> Mapping[str, Any]:
    """Kept and broken differ in shape as well as in colour."""
    return {
        "size": [14 if point.best else 9 for point in points],
        "symbol": ["star" if point.best else "x" if point.kept is False else "circle" for point in points],
        "color": ["--green" if point.best else "--red" if point.kept is False else "--blue" for point in points],
    }


def _best(point: Point, x: float | None, y: float, logarithmic: bool) -> Mapping[str, Any]:
    place = {"x": x, "y": math.log10(y) if logarithmic and y > 0 else y, "ax": 0, "ay": -34}
    text = f"highest that kept the promise: {point.name}, {number(point.tokens_per_second)} tokens/s"
    return {**place, "text": text, "showarrow": True, "arrowcolor": "--quiet", "bgcolor": "--card"}
