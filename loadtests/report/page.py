"""The HTML pages of a run, a sweep and a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtests.analysis.comparison.result import Comparison
from loadtests.analysis.summary import Summary
from loadtests.analysis.sweep import Sweep
from loadtests.report import tables
from loadtests.report.comparison import change_charts, changes_table, comparison_headline, notes
from loadtests.report.definitions import definitions
from loadtests.report.document import document
from loadtests.report.formats import number, percent, seconds, text
from loadtests.report.headline import headline, load_text, missing_figures_text, plan_in, tiles
from loadtests.report.latency_charts import LoadPoint, curve_charts, throughput_charts
from loadtests.report.sweep import (
    not_converged_text,
    points,
    slo_notes,
    slo_results,
    steps,
    sweep_headline,
    sweep_tiles,
    validity_notes,
)
from loadtests.report.tables import Table
from loadtests.report.timeline import timeline_chart
from loadtests.served_model import describe_served_model

_NO_COUNTERS_NOTE = "Without the server's counters there is nothing to compare."
_NO_COUNTS = "The server's metrics have no counts of requests and tokens to compare with."
_REASON_ABOVE = "The counts are not compared; see the notes on the server's figures for the reason."


def run_page(summary: Summary, name: str = "", library: str = "") -> str:
    """Return the page of one run: an HTML document that needs no network and no other file than `library`."""
    warmup, end = _measured(plan_in(summary))
    timeline = timeline_chart(summary.timeline, warmup, end)
    curves = list(curve_charts(summary))
    trade_off = list(throughput_charts(_phase_points(summary), summary.slo, summary.throughput.unit))
    missing = missing_figures_text(summary)
    server_notes = [tables.as_sentence(note) for note in summary.server.notes] if summary.server else []
    return document(
        "run.html",
        _title(name, load_text(summary), "load test"),
        [*([timeline] if timeline else []), *curves, *trade_off],
        library=library,
        name=text(name),
        kind=_kind(summary),
        reasons=[tables.as_sentence(reason) for reason in summary.validity.reasons],
        warnings=[tables.as_sentence(note) for note in summary.validity.notes],
        headline=headline(summary),
        tiles=tiles(summary),
        slo=tables.slo_table(summary.slo) if summary.slo else None,
        audit=tables.audit_table(summary.audit) if summary.audit else None,
        timeline=timeline,
        curves=curves,
        trade_off=trade_off,
        outcomes=tables.outcome_table(summary.requests),
        errors=tables.error_table(summary.requests) if summary.requests.errors else None,
        latencies=tables.latency_table(summary.latencies),
        sides=tables.server_table(summary, summary.server) if summary.server and not missing else None,
        missing=tables.as_sentence(missing),
        notes=server_notes,
        matches=tables.reconciliation_table(summary.reconciliation) if summary.reconciliation else None,
        unmatched=_NO_COUNTERS_NOTE if summary.server is None else _REASON_ABOVE if server_notes else _NO_COUNTS,
        cost=tables.cost_table(summary.cost) if summary.cost else None,
        lag=tables.lag_table(summary.validity),
        processes=tables.process_table(summary.validity),
        definitions=definitions(encoder=summary.texts is not None),
        facts=list(tables.metadata_tables(summary.metadata)),
    )


def sweep_page(sweep: Sweep, name: str = "", library: str = "") -> str:
    """Return the page of a sweep with all its runs, as `run_page` does for one."""
    best = sweep.best.summary if sweep.best else None
    summary = best or (sweep.steps[-1].summary if sweep.steps else None)
    unit = summary.throughput.unit if summary else "output tokens/s"
    trade_off = list(throughput_charts(points(sweep), slo_results(sweep), unit))
    return document(
        "sweep.html",
        _title(name, "sweep of load tests"),
        trade_off,
        library=library,
        name=text(name),
        kind=_kind(summary, "Sweep") if summary else "Sweep",
        reasons=validity_notes(sweep),
        headline=sweep_headline(sweep),
        tiles=sweep_tiles(sweep),
        unsettled=not_converged_text(sweep),
        trade_off=trade_off,
        steps=steps(sweep),
        notes=slo_notes(sweep),
        latencies=tables.latency_table(best.latencies) if best else None,
        cost=tables.cost_table(best.cost) if best and best.cost else None,
        definitions=definitions(encoder=summary is not None and summary.texts is not None),
        facts=list(tables.metadata_tables(summary.metadata)) if summary else [],
    )


def comparison_page(comparison: Comparison, name: str = "", library: str = "") -> str:
    """Return the page of a comparison: an HTML document that needs no network and no other file than `library`.

    With a name, the runs are in the page's own directory, and it has links to their pages.
    """
    charts = list(change_charts(comparison))
    sides = dict(zip(comparison.names, (comparison.before, comparison.after), strict=True))
    runs: list[list[tables.Cell | str]] = [
        [side, tables.Cell(text(Path(run).name), link=f"{Path(run).name}/report.html") if name else text(run)]
        for side, named in sides.items()
        for run in named
    ]
    name = text(name) or " and ".join(", ".join(text(Path(run).name) for run in side) for side in sides.values())
    if any(comparison.served):
        runs = [[*run, text(served)] for run, served in zip(runs, comparison.served, strict=True)]
    heads = ("side", "run", "model") if any(comparison.served) else ("side", "run")
    return document(
        "comparison.html",
        _title(name, "comparison of load tests"),
        charts,
        library=library,
        name=name,
        threshold=comparison.threshold is not None,
        headline=comparison_headline(comparison),
        regressions=bool(comparison.regressions),
        warnings=[tables.as_sentence(warning) for warning in comparison.warnings],
        confidence=percent(comparison.confidence),
        intervals=charts,
        changes=changes_table(comparison, with_intervals=True),
        notes=notes(comparison),
        audits={name: tables.audit_table(checks) for name, checks in comparison.audits.items()},
        runs=Table(heads, runs, words=3),
        definitions=definitions(encoder=comparison.encoder),
    )


def _title(name: str, *words: str) -> str:
    """Return the page's title in the browser."""
    title = ", ".join(words)
    return f"{text(name)}: {title}" if name else f"{title[:1].upper()}{title[1:]}"


def _kind(summary: Summary, what: str = "Load test") -> str:
    """Return the line above the headline: the kind of test, the model and server, the start and the duration."""
    plan = plan_in(summary)
    served = f" of {text(words)}" if (words := describe_served_model(summary.metadata)) else ""
    where = f" {'at' if served else 'of'} {text(plan['server'])}" if plan.get("server") else ""
    each = " each" if what == "Sweep" else ""
    when = f", {text(began)}" if (began := summary.metadata.get("began")) else ""
    return f"{what}{served}{where}{when}, measured for {seconds(summary.measured_seconds)}{each}"


def _measured(plan: Mapping[str, Any]) -> tuple[float, float | None]:
    """Return the seconds between which requests count; all requests without a plan."""
    warmup, length = plan.get("warmup", 0.0), plan.get("seconds")
    if not isinstance(warmup, int | float) or not isinstance(length, int | float):
        return 0.0, None
    return float(warmup), float(warmup + length)


def _phase_points(summary: Summary) -> list[LoadPoint]:
    """Return the phases of the run in order of load."""
    ordered = sorted(summary.load_phases, key=lambda part: part.offered_per_second)
    return [
        LoadPoint(
            f"{number(part.start)} s to {number(part.end)} s, {number(part.offered_per_second)} requests/s",
            part.throughput,
            part.latencies,
        )
        for part in ordered
    ]
