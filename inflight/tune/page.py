"""The page of a run: throughput against latency, the settings that nothing else beats, and the quality beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inflight.tune.results import EQUAL_TOKENS, AloneTrial, ServedTrial, TuneResult
from loadtests.report.chart import Chart, axis, legend, legend_below, line, markers, rounded, time_unit
from loadtests.report.document import document
from loadtests.report.formats import number, seconds, text
from loadtests.report.headline import Tile
from loadtests.report.tables import Cell, Row, Table, as_sentence

_TEMPLATES = Path(__file__).parent / "templates"
LATENCIES = {"tpot": "Time per output token, 99th percentile", "ttft": "Time to first token, 99th percentile"}


def tune_page(result: TuneResult, name: str) -> str:
    """Return the page: an HTML document that needs no network and no other file."""
    charts = [_latency_chart(result, quantity) for quantity in LATENCIES if _measured(result, quantity)]
    if result.quality:
        charts.append(_quality_chart(result))
    return document(
        "tune.html",
        f"{text(name)}: settings compared",
        charts,
        templates=_TEMPLATES,
        name=text(name),
        headline=headline(result),
        tiles=_tiles(result),
        notes=[as_sentence(note) for note in result.notes()],
        figures_shown=charts,
        served=_served_table(result),
        quality=_quality_table(result) if result.quality else None,
        alone=_alone_table(result.alone) if result.alone else None,
    )


def headline(result: TuneResult) -> str:
    best = result.best
    slo = "" if best.meets_slo is None else ", and the SLO is met" if best.meets_slo else "; no setting met the SLO"
    return f"{best.settings}: {number(best.tokens_per_second)} output tokens/s{slo}."


def frontier(trials: Sequence[ServedTrial], quantity: str) -> list[ServedTrial]:
    """Return the trials that no other one beats in both throughput and latency, by throughput."""
    unbeaten: list[ServedTrial] = []
    for trial in sorted(trials, key=lambda trial: (-trial.tokens_per_second, trial.p99[quantity])):
        if not unbeaten or trial.p99[quantity] < unbeaten[-1].p99[quantity]:
            unbeaten.append(trial)
    return unbeaten[::-1]


def _measured(result: TuneResult, quantity: str) -> list[ServedTrial]:
    return [trial for trial in result.served if quantity in trial.p99]


def _latency_chart(result: TuneResult, quantity: str) -> Chart:
    trials = _measured(result, quantity)
    unit = time_unit(trial.p99[quantity] for trial in trials)
    best = frontier(trials, quantity)
    data = [
        line(
            "frontier",
            [rounded(trial.tokens_per_second) for trial in best],
            unit.scale(trial.p99[quantity] for trial in best),
            "--blue",
            dash="dot",
            hoverinfo="skip",
            hovertemplate=None,
        )
    ]
    data += _points(result, trials, unit.scale(trial.p99[quantity] for trial in trials), f"%{{y:,.4~r}} {unit.name}")
    return _chart(f"tune-{quantity}", LATENCIES[quantity], data, unit.name, 360)


def _quality_chart(result: TuneResult) -> Chart:
    name = next(iter(result.quality[0].figures))
    scale, unit = (100, "% of greedy tokens as in fp32") if name == EQUAL_TOKENS else (1, name)
    found = [(trial, result.quality_of(trial.settings.build)) for trial in result.served]
    known = [(trial, scale * value) for trial, each in found if each and (value := each.figures[name]) is not None]
    data = _points(
        result, [trial for trial, _ in known], [rounded(value) for _, value in known], f"%{{y:,.3~r}} {name}"
    )
    return _chart("tune-quality", "Quality", data, unit, 320)


def _chart(name: str, title: str, data: list[dict[str, Any]], unit: str, height: int) -> Chart:
    layout = {
        "hovermode": "closest",
        "xaxis": axis("output tokens/s"),
        "yaxis": axis(unit, rangemode="tozero"),
        "legend": legend(),
    }
    return Chart(name, title, data, layout, height, legend_below(height, len(data)))


def _points(
    result: TuneResult, trials: Sequence[ServedTrial], y: Sequence[float | None], what: str
) -> list[dict[str, Any]]:
    verdicts = [_verdict(result, trial) for trial in trials]
    x = [rounded(trial.tokens_per_second) for trial in trials]
    template = f"%{{customdata}}: {what} at %{{x:,.4~r}} tokens/s"
    labels = [str(trial.settings) for trial in trials]
    return list(markers(("candidate", "misses the SLO", "chosen"), verdicts, x, y, labels, template))


def _verdict(result: TuneResult, trial: ServedTrial) -> str:
    if trial == result.best:
        return "chosen"
    return "misses the SLO" if trial.meets_slo is False else "candidate"


def _tiles(result: TuneResult) -> list[Tile]:
    best = result.best
    tiles = [Tile("Output tokens/s", number(best.tokens_per_second), str(best.settings))]
    tiles += [
        Tile(f"p99 {quantity}", seconds(best.p99[quantity])) for quantity in ("ttft", "tpot") if quantity in best.p99
    ]
    if quality := result.quality_of(best.settings.build):
        name = next(iter(quality.figures))
        tiles.append(
            Tile(name.capitalize(), quality.shown(name), "with greedy answers in fp32" * (name == EQUAL_TOKENS))
        )
    tiles.append(Tile("Time", seconds(result.seconds), f"{len(result.alone)} engines, {len(result.served)} servers"))
    return tiles


def _served_table(result: TuneResult) -> Table:
    heads = ["settings", "tokens/s", "requests/s", "TTFT p50", "TTFT p99", "TPOT p99", "ITL p99", "lost"]
    has_slo = any(trial.meets_slo is not None for trial in result.served)
    rows: list[Row] = []
    for trial in result.served:
        cells: list[Cell | str] = [
            Cell(str(trial.settings), "good" if trial == result.best else "", f"{trial.run}/report.html"),
            number(trial.tokens_per_second),
            number(trial.requests_per_second),
            seconds(trial.p50.get("ttft")),
            *(seconds(trial.p99.get(name)) for name in ("ttft", "tpot", "itl")),
            str(trial.lost),
        ]
        if has_slo:
            cells.append(Cell("met", "good") if trial.meets_slo else Cell("missed", "bad"))
        rows.append(cells)
    return Table([*heads, "SLO"] if has_slo else heads, rows)


def _quality_table(result: TuneResult) -> Table:
    names = [*result.quality[0].figures]
    rows: list[Row] = [[str(each.build), *map(each.shown, names)] for each in result.quality]
    return Table(("engine", *names), rows)


def _alone_table(alone: Sequence[AloneTrial]) -> Table:
    rows: list[Row] = [
        [str(trial.settings), number(trial.tokens_per_second), seconds(trial.p99_step), seconds(trial.seconds)]
        for trial in sorted(alone, key=lambda trial: (-trial.seconds, -trial.tokens_per_second))
    ]
    return Table(("settings", "tokens/s", "p99 step", "measured for"), rows)
