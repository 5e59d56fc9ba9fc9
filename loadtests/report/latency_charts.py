"""Latency charts: percentiles of a run, and latency by load."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.analysis.summary import DistributionSummary, SloResult, Summary
from loadtests.report.chart import Chart, axis, legend, legend_below, limit_line, line, markers, rounded, time_unit
from loadtests.report.slo_text import quantities, slo_text, statistic, strictest
from loadtests.report.tables import LATENCIES

_PERCENTILE_TICKS = (
    (1, "0"),
    (2, "50"),
    (10, "90"),
    (100, "99"),
    (1e3, "99.9"),
    (1e4, "99.99"),
    (1e5, "99.999"),
    (1e6, "99.9999"),
)
_PERCENTILE_CHARTS = (
    ("Time to first token", (("ttft", "from due", "--blue", "solid"), ("ttft_sent", "from sent", "--orange", "dot"))),
    ("End to end", (("e2e", "from due", "--blue", "solid"), ("e2e_sent", "from sent", "--orange", "dot"))),
    ("Inter-token latency (ITL)", (("itl", "ITL", "--green", "solid"),)),
    ("Time per output token (TPOT)", (("tpot", "TPOT", "--purple", "solid"),)),
)


def curve_charts(summary: Summary) -> Iterator[Chart]:
    """Yield a chart for each kind of latency that was measured."""
    for title, lines in _PERCENTILE_CHARTS:
        measured = [entry for entry in lines if summary.curves.get(entry[0])]
        if measured:
            yield _percentile_chart(summary, title, measured)


def _percentile_chart(summary: Summary, title: str, lines: Sequence[tuple[str, str, str, str]]) -> Chart:
    unit = time_unit(value for name, *_ in lines for _, value in summary.curves[name])
    data: list[dict[str, Any]] = []
    furthest = 10.0
    for name, called, colour, dash in lines:
        curve = summary.curves[name]
        # The largest of n values is at no percentile that n values can distinguish from 100.
        count = max(2, summary.latencies[name].count) if name in summary.latencies else 1000
        x = [min(1 / max(1 - percentile / 100, 1e-9), count) for percentile, _ in curve]
        y = unit.scale(value for _, value in curve)
        furthest = max(furthest, *x)
        data.append(
            line(
                called,
                [rounded(value) for value in x],
                y,
                colour,
                unit.name,
                dash=dash,
                customdata=[f"{percentile:.7g}" for percentile, _ in curve],
                hovertemplate=f"p%{{customdata}}: %{{y:,.4~r}} {unit.name}",
                showlegend=len(lines) > 1,
            )
        )
    bound = strictest(summary.slo, *(name for name, *_ in lines))
    ticks = [(at, text) for at, text in _PERCENTILE_TICKS if at <= furthest * 1.5]
    layout = {
        "hovermode": "closest",
        "xaxis": axis("percentile", type="log", tickvals=[at for at, _ in ticks], ticktext=[text for _, text in ticks]),
        "yaxis": axis(unit.name, rangemode="tozero"),
        "legend": legend(),
        **(limit_line(bound.limit * unit.factor, f"limit: {slo_text(bound)}") if bound else {}),
    }
    return Chart(
        f"curve-{lines[0][0]}", title, data, layout, narrow=legend_below(280, len(lines) if len(lines) > 1 else 0)
    )


_MIN_LOG_RATIO = 30
"""Ratio of the largest to the smallest latency above which the axis is logarithmic."""


@dataclass(frozen=True)
class LoadPoint:
    """One level of load, called `name` in the chart, with its output tokens or texts per second; `met` says whether the
    SLO was met, None without an SLO."""

    name: str
    throughput: float
    latencies: Mapping[str, DistributionSummary]
    met: bool | None = None
    best: bool = False
    """Whether this is the highest load that met the SLO."""
    level: float | None = None
    """Points with the same level are repeated runs; None if the point has its own level."""


def throughput_charts(
    points: Sequence[LoadPoint], results: Sequence[SloResult], unit: str = "output tokens/s"
) -> Iterator[Chart]:
    """Yield charts for TTFT, ITL and the latencies of the SLO, with points in order of load; none for one point."""
    measured = [name for name in LATENCIES if sum(name in point.latencies for point in points) > 1]
    relevant = {"ttft", "itl", *quantities(results)}
    for name in [name for name in measured if name in relevant] or measured[:1]:
        with_latency = [point for point in points if name in point.latencies]
        yield _throughput_chart(name, with_latency, strictest(results, name), unit)


def _throughput_chart(name: str, points: Sequence[LoadPoint], bound: SloResult | None, per_second: str) -> Chart:
    """Return a chart of the median and the percentile of the SLO, or the 99th without an SLO."""
    upper = (statistic(bound) if bound else "") or "p99"
    highest = [float(getattr(point.latencies[name], upper)) for point in points]
    lowest = [point.latencies[name].p50 for point in points]
    x = [rounded(point.throughput) for point in points]
    unit = time_unit(highest)
    logarithmic = min(lowest) > 0 and max(highest) > _MIN_LOG_RATIO * min(lowest)
    template = f"%{{customdata}}: %{{y:,.4~r}} {unit.name} at %{{x:,.4~r}} {per_second}"
    places = sorted(_best_per_level(points, highest), key=lambda place: points[place].throughput)
    along, names = [x[place] for place in places], [points[place].name for place in places]
    hover: dict[str, Any] = {"customdata": names, "hovertemplate": template}
    plain = all(point.met is None for point in points)
    mode = {"mode": "lines+markers", "marker": {"size": 8}} if plain else {"mode": "lines"}
    label = "p99.9" if upper == "p999" else upper
    data = [line(label, along, unit.scale(highest[place] for place in places), "--blue", **mode, **hover)]
    if upper != "p50":
        medians = unit.scale(lowest[place] for place in places)
        data.insert(0, line("p50", along, medians, "--blue", dash="dot", mode="lines+markers", **hover))
    if not plain:
        verdicts = [_verdict(point) for point in points]
        labels = [point.name for point in points]
        data += markers(("met", "missed", "highest met"), verdicts, x, unit.scale(highest), labels, template)
    ends = min(lowest) * unit.factor, max(highest) * unit.factor
    scale = _decades(*ends) if logarithmic else {"rangemode": "tozero"}
    limit = bound.limit * unit.factor if bound and statistic(bound) else None
    marks = limit_line(limit, f"limit: {slo_text(bound)}" if bound else "", logarithmic=logarithmic)
    layout = {
        "hovermode": "closest",
        "xaxis": axis(per_second, rangemode="tozero"),
        "yaxis": axis(unit.name, **scale),
        "legend": legend(),
        **marks,
    }
    return Chart(f"trade-off-{name}", LATENCIES[name], data, layout, 340, legend_below(340, len(data)))


def _best_per_level(points: Sequence[LoadPoint], values: Sequence[float]) -> list[int]:
    """Return the points on the line: at each level the one with the median value."""
    levels: dict[object, list[int]] = {}
    for place, point in enumerate(points):
        levels.setdefault(place if point.level is None else f"{point.level}", []).append(place)
    return [sorted(at, key=lambda place: values[place])[(len(at) - 1) // 2] for at in levels.values()]


def _decades(least: float, most: float) -> dict[str, Any]:
    """Return a logarithmic axis with round ticks: 0.1, 0.2, 0.5, 1, ..."""
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:,g}" for tick in ticks]}


def _verdict(point: LoadPoint) -> str:
    return "highest met" if point.best else "met" if point.met else "missed"
