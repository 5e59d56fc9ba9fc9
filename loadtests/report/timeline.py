"""The run over time: load, tokens, latencies, and the server's queue and cache, on one time axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.analysis.summary import Timeline
from loadtests.report.chart import (
    NO_UNIT,
    Chart,
    DisplayUnit,
    Values,
    axis,
    legend,
    line,
    rounded,
    tick_step,
    time_unit,
)

_ROW = 112
_BETWEEN = 34
_LEGEND = 22
"""Height in pixels of a legend's line, which has two names on a narrow screen."""
_EDGES = 74


@dataclass(frozen=True)
class TimelineRow:
    """One strip of the chart: its columns of the timeline, each with its name, colour and dash."""

    title: str
    lines: Sequence[tuple[str, str, str, str]]
    unit: str = ""


_P50, _P99 = "dot", "solid"
_ROWS = (
    TimelineRow(
        "Requests (1/s)",
        (
            ("due", "due", "--grey", "solid"),
            ("sent", "sent", "--orange", "dot"),
            ("completed", "completed", "--blue", "solid"),
            ("failed", "failed", "--red", "solid"),
        ),
    ),
    TimelineRow("Open requests", (("open", "open requests", "--blue", "solid"),)),
    TimelineRow("Output tokens (1/s)", (("tokens", "output tokens", "--green", "solid"),)),
    TimelineRow("Texts (1/s)", (("texts", "texts", "--green", "solid"),)),
    TimelineRow(
        "End to end, from due",
        (("e2e_p50", "end to end p50", "--blue", _P50), ("e2e_p99", "end to end p99", "--blue", _P99)),
        "time",
    ),
    TimelineRow("Texts waiting in the server", (("waiting_texts", "waiting texts", "--orange", "solid"),)),
    TimelineRow(
        "TTFT, from due", (("ttft_p50", "TTFT p50", "--blue", _P50), ("ttft_p99", "TTFT p99", "--blue", _P99)), "time"
    ),
    TimelineRow("ITL", (("itl_p50", "ITL p50", "--green", _P50), ("itl_p99", "ITL p99", "--green", _P99)), "time"),
    TimelineRow(
        "Requests in the server", (("running", "running", "--blue", "solid"), ("waiting", "waiting", "--orange", "dot"))
    ),
    TimelineRow("KV cache in use (%)", (("kv_use", "KV cache in use", "--purple", "solid"),), "share"),
    TimelineRow(
        "Event loop delay of the load generator", (("lag", "delay of event loops", "--grey", "solid"),), "time"
    ),
)


def timeline_chart(timeline: Timeline, warmup: float = 0.0, end: float | None = None) -> Chart | None:
    """Return the chart; None if nothing was measured. Requests count from second `warmup` to second `end`."""
    rows = [row for row in _ROWS if _lines(timeline, row)]
    if not timeline.t or not rows:
        return None
    wide, narrow = _strips(timeline, rows, False), _strips(timeline, rows, True)
    data = list(_traces(timeline, rows))
    layout: dict[str, Any] = {"hovermode": "x unified", "hoversubplots": "axis", **wide}
    last = timeline.t[-1] + 1
    layout["xaxis"] = axis(
        "seconds since the run's start",
        anchor=f"y{len(rows)}" if len(rows) > 1 else "y",
        range=[0, last],
        unifiedhovertitle={"text": "second %{x}"},
        spikecolor="--quiet",
        spikethickness=1,
    )
    layout["shapes"], notes = _edges(warmup, end, last)
    layout["annotations"] = [*layout["annotations"], *notes]
    return Chart("timeline", "Load, latencies and the server over time", data, layout, layout["height"], narrow)


def _strips(timeline: Timeline, rows: Sequence[TimelineRow], narrow: bool) -> dict[str, Any]:
    """Return axes, titles and legends of the rows; on a narrow screen legends are below the titles."""
    between = _BETWEEN + (_LEGEND if narrow else 0)
    legends = [math.ceil(len(_lines(timeline, row)) / 2) * _LEGEND if narrow else 0 for row in rows]
    inner = len(rows) * _ROW + (len(rows) - 1) * between
    margin = {"l": 44, "r": 12, "t": 26 + legends[0], "b": 44}
    layout: dict[str, Any] = {"annotations": [], "height": inner + _EDGES + legends[0], "margin": margin}
    for number, row in enumerate(rows, 1):
        key = "" if number == 1 else str(number)
        top = 1 - (number - 1) * (_ROW + between) / inner
        unit, lines = _unit(timeline, row), _lines(timeline, row)
        values = [value for line in lines for value in unit.scale(timeline.columns[line[0]]) if value is not None]
        domain = [max(0.0, top - _ROW / inner), top]
        layout[f"yaxis{key}"] = axis(domain=domain, rangemode="tozero", tick0=0, dtick=tick_step(max(values)))
        shift = legends[number - 1] if len(lines) > 1 else 0
        layout["annotations"].append({**_title(row, unit, top), "yshift": shift})
        if len(lines) > 1:
            layout[f"legend{key}"] = {**legend(top), **({"x": 0, "xanchor": "left"} if narrow else {})}
    return layout


def _traces(timeline: Timeline, rows: Sequence[TimelineRow]) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(rows, 1):
        key = "" if number == 1 else str(number)
        unit, lines = _unit(timeline, row), _lines(timeline, row)
        for column, name, colour, dash in lines:
            values = unit.scale(timeline.columns[column])
            where = {"yaxis": f"y{key}", "legend": f"legend{key}", "showlegend": len(lines) > 1}
            yield _trace(name, timeline.t, values, colour, unit.name, dash, **where)


def _lines(timeline: Timeline, row: TimelineRow) -> list[tuple[str, str, str, str]]:
    """Return the lines of a row that have any value."""
    return [line for line in row.lines if any(value is not None for value in timeline.columns.get(line[0], ()))]


def _unit(timeline: Timeline, row: TimelineRow) -> DisplayUnit:
    if row.unit == "time":
        return time_unit(value for line in row.lines for value in timeline.columns.get(line[0], ()))
    return DisplayUnit(100, "%") if row.unit == "share" else NO_UNIT


def _title(row: TimelineRow, unit: DisplayUnit, top: float) -> Mapping[str, Any]:
    called = f"{row.title} ({unit.name})" if row.unit == "time" else row.title
    place = {"xref": "paper", "yref": "paper", "x": 0, "xanchor": "left", "y": top, "yanchor": "bottom"}
    return {**place, "text": f"<b>{called}</b>", "showarrow": False}


def _trace(name: str, t: Values, y: Values, colour: str, unit: str, dash: str, **more: Any) -> dict[str, Any]:
    """Return one line; a value between two gaps gets a marker, since no line would show it."""
    alone = [
        value if value is not None and (not i or y[i - 1] is None) and (i + 1 == len(y) or y[i + 1] is None) else None
        for i, value in enumerate(y)
    ]
    if any(value is not None for value in alone):
        sizes = [4 if value is not None else 0 for value in alone]
        more |= {"mode": "lines+markers", "marker": {"size": sizes, "color": colour, "line": {"width": 0}}}
    return line(name, t, y, colour, unit, dash=dash, **more)


def _edges(warmup: float, end: float | None, last: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return shaded and labelled areas for the parts that were not measured."""
    parts = [("warm-up", 0.0, warmup)] if warmup > 0 else []
    if end is not None and 0 < end < last:
        parts.append(("nothing new", end, last))
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for name, start, stop in parts:
        span = {"xref": "x", "yref": "paper", "x0": rounded(start), "x1": rounded(stop), "y0": 0, "y1": 1}
        shapes.append({**span, "type": "rect", "fillcolor": "--shade", "line": {"width": 0}, "layer": "below"})
        if stop - start > last * 0.07:
            place = {"xref": "x", "yref": "paper", "x": (start + stop) / 2, "y": 1, "yanchor": "top"}
            notes.append({**place, "text": name, "showarrow": False, "font": {"color": "--quiet", "size": 11}})
    return shapes, notes
