"""The pages that a person reads: of a run, of a sweep, of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtests.analysis.comparison import Comparison
from loadtests.analysis.summary import Summary
from loadtests.analysis.sweep import Sweep
from loadtests.report import tables
from loadtests.report.comparison import change_charts, changes_table, comparison_headline, notes
from loadtests.report.curves import curve_charts
from loadtests.report.definitions import definitions
from loadtests.report.document import document
from loadtests.report.formats import number, seconds, share, text
from loadtests.report.headline import headline, load, plan_of, tiles
from loadtests.report.sweep import (
    bound_notes,
    bounds_of,
    distrusted,
    points,
    steps,
    sweep_headline,
    sweep_tiles,
    unsettled,
)
from loadtests.report.table import Table
from loadtests.report.timeline import timeline_chart
from loadtests.report.trade_off import Point, trade_off_charts
from loadtests.served import served_words

_NO_COUNTERS = "Without the server's counters there is nothing to compare with."
_NO_COUNTS = "The server's metrics have no counts of requests and tokens to compare with."
_REASON_ABOVE = "They are not compared; the reason stands with the server's own figures."


def run_page(summary: Summary, name: str = "", library: str = "") -> str:
    """One run, as a whole HTML document that needs no network, nor another file but the `library` that it may name."""
    warmup, end = _measured(plan_of(summary))
    timeline = timeline_chart(summary.timeline, warmup, end)
    curves = list(curve_charts(summary))
    trade_off = list(trade_off_charts(_slices(summary), summary.promise))
    server_notes = [tables.sentence(note) for note in summary.server.notes] if summary.server else []
    return document(
        "run.html",
        _title(name, load(summary), "load test"),
        [*([timeline] if timeline else []), *curves, *trade_off],
        library=library,
        name=text(name),
        kind=_kind(summary),
        reasons=[tables.sentence(reason) for reason in summary.grade.reasons],
        warnings=[tables.sentence(note) for note in summary.grade.notes],
        headline=headline(summary),
        tiles=tiles(summary),
        promise=tables.promise(summary.promise) if summary.promise else None,
        timeline=timeline,
        curves=curves,
        trade_off=trade_off,
        outcomes=tables.outcomes(summary.requests),
        errors=tables.errors(summary.requests) if summary.requests.errors else None,
        latencies=tables.latencies(summary.latencies),
        sides=tables.sides(summary, summary.server) if summary.server else None,
        notes=server_notes,
        matches=tables.matches(summary.matches) if summary.matches else None,
        unmatched=_NO_COUNTERS if summary.server is None else _REASON_ABOVE if server_notes else _NO_COUNTS,
        cost=tables.cost(summary.cost) if summary.cost else None,
        lag=tables.lag(summary.grade),
        processes=tables.processes(summary.grade),
        definitions=definitions(),
        facts=list(tables.facts(summary.facts)),
    )


def sweep_page(sweep: Sweep, name: str = "", library: str = "") -> str:
    """All runs of a sweep, as a whole HTML document that needs no network, as `run_page`."""
    best = sweep.best.summary if sweep.best else None
    trade_off = list(trade_off_charts(points(sweep), bounds_of(sweep)))
    known = best or (sweep.steps[-1].summary if sweep.steps else None)
    return document(
        "sweep.html",
        _title(name, "sweep of load tests"),
        trade_off,
        library=library,
        name=text(name),
        kind=_kind(known, "Sweep") if known else "Sweep",
        reasons=distrusted(sweep),
        headline=sweep_headline(sweep),
        tiles=sweep_tiles(sweep),
        unsettled=unsettled(sweep),
        trade_off=trade_off,
        steps=steps(sweep),
        notes=bound_notes(sweep),
        latencies=tables.latencies(best.latencies) if best else None,
        cost=tables.cost(best.cost) if best and best.cost else None,
        definitions=definitions(),
        facts=list(tables.facts(known.facts)) if known else [],
    )


def comparison_page(comparison: Comparison) -> str:
    """Two sides and what changed between them, as a whole HTML document that needs no network."""
    charts = list(change_charts(comparison))
    name = " and ".join(
        ", ".join(text(Path(run).name) for run in side) for side in (comparison.before, comparison.after)
    )
    runs = [[side, text(run)] for side in ("before", "after") for run in getattr(comparison, side)]
    if any(comparison.served):
        runs = [[*run, text(served)] for run, served in zip(runs, comparison.served, strict=True)]
    heads = ("side", "run", "model") if any(comparison.served) else ("side", "run")
    return document(
        "comparison.html",
        _title(name, "comparison of load tests"),
        charts,
        name=name,
        headline=comparison_headline(comparison),
        regressions=bool(comparison.regressions),
        warnings=[tables.sentence(warning) for warning in comparison.warnings],
        confidence=share(comparison.confidence),
        intervals=charts,
        changes=changes_table(comparison),
        notes=notes(comparison),
        runs=Table(heads, runs, words=3),
        definitions=definitions(),
    )


def _title(name: str, *words: str) -> str:
    """What the browser calls the page."""
    found = ", ".join(words)
    return f"{text(name)}: {found}" if name else f"{found[:1].upper()}{found[1:]}"


def _kind(summary: Summary, what: str = "Load test") -> str:
    """A line above the headline: what this is, of which model and server, when, and how long it measured."""
    plan = plan_of(summary)
    served = f" of {text(words)}" if (words := served_words(summary.facts)) else ""
    where = f" {'at' if served else 'of'} {text(plan['address'])}" if plan.get("address") else ""
    each = " each" if what == "Sweep" else ""
    when = f", {text(began)}" if (began := summary.facts.get("began")) else ""
    return f"{what}{served}{where}{when}, measured for {seconds(summary.measured_seconds)}{each}"


def _measured(plan: Mapping[str, Any]) -> tuple[float, float | None]:
    """From which second to which requests count; without a plan, all of them."""
    warmup, length = plan.get("warmup", 0.0), plan.get("seconds")
    if not isinstance(warmup, int | float) or not isinstance(length, int | float):
        return 0.0, None
    return float(warmup), float(warmup + length)


def _slices(summary: Summary) -> list[Point]:
    """The steps of the run, by their load."""
    ordered = sorted(summary.slices, key=lambda part: part.offered_per_second)
    return [
        Point(
            f"{number(part.start)} s to {number(part.end)} s, {number(part.offered_per_second)} requests/s",
            part.tokens_per_second,
            part.latencies,
        )
        for part in ordered
    ]
