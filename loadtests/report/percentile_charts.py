"""Latency against percentile, with the axis of HdrHistogram: as much room for 99 to 99.9 as for 90 to 99."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loadtests.analysis.summary import Summary
from loadtests.report.chart import Chart, axis, legend, legend_below, limit_line, line, rounded, time_unit
from loadtests.report.slo_text import slo_text, strictest

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
    """One for each kind of latency that was measured."""
    for title, told in _PERCENTILE_CHARTS:
        found = [entry for entry in told if summary.curves.get(entry[0])]
        if found:
            yield _percentile_chart(summary, title, found)


def _percentile_chart(summary: Summary, title: str, found: Sequence[tuple[str, str, str, str]]) -> Chart:
    unit = time_unit(value for name, *_ in found for _, value in summary.curves[name])
    data: list[dict[str, Any]] = []
    furthest = 10.0
    for name, called, colour, dash in found:
        curve = summary.curves[name]
        # The largest of n values lies at no percentile that n values can tell from 100.
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
                showlegend=len(found) > 1,
            )
        )
    bound = strictest(summary.slo, *(name for name, *_ in found))
    ticks = [(at, text) for at, text in _PERCENTILE_TICKS if at <= furthest * 1.5]
    layout = {
        "hovermode": "closest",
        "xaxis": axis("percentile", type="log", tickvals=[at for at, _ in ticks], ticktext=[text for _, text in ticks]),
        "yaxis": axis(unit.name, rangemode="tozero"),
        "legend": legend(),
        **(limit_line(bound.limit * unit.factor, f"limit: {slo_text(bound)}") if bound else {}),
    }
    return Chart(
        f"curve-{found[0][0]}", title, data, layout, narrow=legend_below(280, len(found) if len(found) > 1 else 0)
    )
