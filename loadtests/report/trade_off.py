"""Throughput against latency: what a little more load costs those who wait."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.analysis.summary import Bound, Spread
from loadtests.report.bounds import bound_text, quantities, statistic, strictest
from loadtests.report.chart import Chart, Values, axis, legend, legend_below, limit_line, line, rounded, time_unit
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
    level: float | None = None
    """Points at the same level of load are runs that repeat one another; None: it is the only one at its level."""


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
    places = _one_a_level(points, highest)
    along, names = [x[place] for place in places], [points[place].name for place in places]
    hover: dict[str, Any] = {"customdata": names, "hovertemplate": template}
    plain = all(point.kept is None for point in points)
    mode = {"mode": "lines+markers", "marker": {"size": 8}} if plain else {"mode": "lines"}
    data = [line(_called(upper), along, unit.of(highest[place] for place in places), "--blue", **mode, **hover)]
    if upper != "p50":
        medians = unit.of(lowest[place] for place in places)
        data.insert(0, line("p50", along, medians, "--blue", dash="dot", mode="lines+markers", **hover))
    if not plain:
        data += _marks(points, x, unit.of(highest), template)
    ends = min(lowest) * unit.factor, max(highest) * unit.factor
    scale = _decades(*ends) if logarithmic else {"rangemode": "tozero"}
    limit = bound.limit * unit.factor if bound and statistic(bound) else None
    marks = limit_line(limit, f"limit: {bound_text(bound)}" if bound else "", logarithmic=logarithmic)
    layout = {
        "hovermode": "closest",
        "xaxis": axis("output tokens/s", rangemode="tozero"),
        "yaxis": axis(unit.name, **scale),
        "legend": legend(),
        **marks,
    }
    return Chart(f"trade-off-{name}", LATENCIES[name], data, layout, 340, legend_below(340, len(data)))


def _one_a_level(points: Sequence[Point], values: Sequence[float]) -> list[int]:
    """Where the line goes through: of the points at one level the one with the median value, else each."""
    levels: dict[object, list[int]] = {}
    for place, point in enumerate(points):
        levels.setdefault(place if point.level is None else f"{point.level}", []).append(place)
    return [sorted(at, key=lambda place: values[place])[(len(at) - 1) // 2] for at in levels.values()]


def _decades(least: float, most: float) -> dict[str, Any]:
    """A logarithmic axis whose marks are whole figures: 0.1, 0.2, 0.5, 1, ..."""
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:,g}" for tick in ticks]}


def _called(field: str) -> str:
    return "p99.9" if field == "p999" else field


def _marks(points: Sequence[Point], x: Values, y: Values, template: str) -> Iterator[dict[str, Any]]:
    """Runs that kept the promise and that broke it differ in shape as well as in colour."""
    told = (("kept", "circle", "--blue", 9), ("broken", "x", "--red", 10), ("highest kept", "star", "--green", 16))
    for name, symbol, colour, size in told:
        places = [place for place, point in enumerate(points) if _verdict(point) == name]
        if places:
            yield {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [x[place] for place in places],
                "y": [y[place] for place in places],
                "customdata": [points[place].name for place in places],
                "hovertemplate": f"{template}<extra>{name}</extra>",
                "marker": {"symbol": symbol, "color": colour, "size": size, "opacity": 1},
            }


def _verdict(point: Point) -> str:
    return "highest kept" if point.best else "kept" if point.kept else "broken"
