"""The common parts of all charts: figures for plotly.js, with colours that the page's style sheet defines.

Figures are plain objects instead of plotly's Python classes because their colours are names of style-sheet variables
(`--blue`): the page's script inserts the theme's colours, and replaces them when the theme changes or the page is
printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Values = Sequence[float | None]


@dataclass(frozen=True)
class Chart:
    """A figure. `title` is also the text for readers who cannot see it; `height` is in pixels. `narrow` replaces parts
    of the layout on a screen as narrow as a phone's."""

    name: str
    title: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any] = field(default_factory=dict)
    height: int = 280
    narrow: Mapping[str, Any] = field(default_factory=dict)

    def figure(self) -> dict[str, Any]:
        layout = {**self.layout, "height": self.height}
        return {"name": self.name, "data": list(self.data), "layout": layout, "narrow": dict(self.narrow)}


@dataclass(frozen=True)
class DisplayUnit:
    """A unit for display, and the factor that converts values to it."""

    factor: float
    name: str

    def scale(self, values: Iterable[float | None]) -> list[float | None]:
        return [rounded(None if value is None else value * self.factor) for value in values]


NO_UNIT = DisplayUnit(1, "")
_CLEAR = "rgba(0,0,0,0)"


def time_unit(values: Iterable[float | None]) -> DisplayUnit:
    """Return the unit that suits the largest of these seconds."""
    largest = max((value for value in values if value is not None and math.isfinite(value)), default=0.0)
    return (
        DisplayUnit(1, "s") if largest >= 2 else DisplayUnit(1e3, "ms") if largest >= 0.001 else DisplayUnit(1e6, "µs")
    )


def rounded(value: float | None) -> float | None:
    """Round to the digits that a chart can show; None for values that JSON cannot represent."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def line(name: str, x: Values, y: Values, colour: str, unit: str = "", **more: Any) -> dict[str, Any]:
    """Return one line; `colour` is a variable of the style sheet."""
    suffix = f" {unit}" if unit else ""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": {"color": colour, "width": 2, "dash": more.pop("dash", "solid"), "shape": more.pop("shape", "linear")},
        "hovertemplate": f"%{{y:,.4~r}}{suffix}",
        **more,
    }


_MARKERS = (("circle", "--blue", 9), ("x", "--red", 10), ("star", "--green", 16))


def markers(
    names: Sequence[str], verdicts: Sequence[str], x: Values, y: Values, labels: Sequence[str], template: str
) -> Iterator[dict[str, Any]]:
    """Yield the points of each verdict of `names` (good, bad, best), which differ in shape as well as in colour."""
    for name, (symbol, colour, size) in zip(names, _MARKERS, strict=True):
        places = [place for place, verdict in enumerate(verdicts) if verdict == name]
        if places:
            yield {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [x[place] for place in places],
                "y": [y[place] for place in places],
                "customdata": [labels[place] for place in places],
                "hovertemplate": f"{template}<extra>{name}</extra>",
                "marker": {"symbol": symbol, "color": colour, "size": size, "opacity": 1},
            }


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """Return an axis in the page's colours, without its own zero line."""
    return {
        "title": {"text": title, "standoff": 8},
        "gridcolor": "--grid",
        "linecolor": "--axis",
        "zeroline": False,
        "showline": True,
        "exponentformat": "none",
        "separatethousands": True,
        "automargin": True,
        **more,
    }


def legend(top: float = 1) -> dict[str, Any]:
    """Return a horizontal legend above the right end of a plot; `top` is its top, a fraction of the height."""
    place = {"x": 1, "xanchor": "right", "y": top, "yanchor": "bottom"}
    return {"orientation": "h", "bgcolor": _CLEAR, **place}


def legend_below(height: int, names: int) -> dict[str, Any]:
    """Return a legend below the axis, one name per line, for `Chart.narrow`."""
    room = 24 * names
    place = {"orientation": "v", "x": 0, "xanchor": "left", "y": 0, "yref": "container", "yanchor": "bottom"}
    return {
        "legend": {"bgcolor": _CLEAR, **place},
        "margin": {"l": 44, "r": 12, "t": 26, "b": 56 + room},
        "height": height + room,
    }


def tick_step(largest: float, max_ticks: int = 5) -> float:
    """Return a round step with between two and `max_ticks` ticks from 0 to the largest value.

    >>> [tick_step(value) for value in (1, 5, 7.4, 33, 0.02)]
    [0.2, 1.0, 2.0, 10.0, 0.005]
    """
    if not (largest > 0 and math.isfinite(largest)):
        return 1
    power = 10.0 ** math.floor(math.log10(largest / max_ticks))
    return float(f"{next(step * power for step in (1, 2, 5, 10) if step * power * max_ticks >= largest):.3g}")


def limit_line(value: float | None, label: str, *, logarithmic: bool = False) -> dict[str, Any]:
    """Return the shapes and annotations of a horizontal line at an SLO's limit; empty for None."""
    if value is None or value <= 0:
        return {}
    mark = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value}
    note = {"xref": "paper", "x": 0, "xanchor": "left", "yanchor": "bottom", "showarrow": False, "text": label}
    return {
        "shapes": [{**mark, "line": {"color": "--limit", "width": 1.5, "dash": "dash"}}],
        # On a logarithmic axis plotly places annotations, but not shapes, by their logarithm.
        "annotations": [{**note, "y": math.log10(value) if logarithmic else value, "font": {"color": "--limit"}}],
    }
