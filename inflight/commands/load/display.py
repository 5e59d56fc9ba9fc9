"""How a run of a load test looks on a terminal: a bar while it goes on, and its figures in the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import click
from rich import progress as bars
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtests.analysis.summary import DistributionSummary, Summary
from loadtests.analysis.sweep.result import USERS, Sweep, actual_session_rate
from loadtests.plan import LoadPlan
from loadtests.report.formats import seconds
from loadtests.report.headline import input_length_mismatch, input_text
from loadtests.report.slo_text import overall_verdict, slo_value
from loadtests.report.sweep import beyond_text, not_converged_text, rate_text, repetition_text
from loadtests.run.controller import RunProgress
from loadtests.served_model import describe_served_model

Figures = TypeVar("Figures", Summary, Sweep)
_LINE_SECONDS = 10.0
"""How often a pipe gets a line."""
_VERDICTS = {"met": "met   ", "missed": "MISSED", "not evaluated": "NOT EVALUATED"}
_ROWS = {
    "ttft": "TTFT",
    "ttft_sent": "TTFT, from sending",
    "itl": "ITL",
    "tpot": "TPOT",
    "e2e": "E2E",
    "e2e_sent": "E2E, from sending",
}


class LoadProgressLines:
    """A line every ten seconds, and one at the end that says what came of the run."""

    def __init__(self, plan: LoadPlan, title: str) -> None:
        self._title = title
        self._end = plan.end
        self._next = _LINE_SECONDS

    def __call__(self, found: RunProgress) -> None:
        if found.elapsed is not None and found.elapsed >= self._next:
            click.echo(f"{self._title}: {found.elapsed:.0f} of {self._end:.0f} s: {_progress_text(found)}", err=True)
            self._next = found.elapsed + _LINE_SECONDS

    def finish(self, summary: Summary) -> None:
        click.echo(f"{self._title}: {_outcome_text(summary)}", err=True)


class LoadProgressBar:
    """A bar on a terminal, which the figures take the place of."""

    def __init__(self, shown: bars.Progress, plan: LoadPlan, title: str) -> None:
        self._shown = shown
        self._task = shown.add_task(title, total=plan.end, words="looking at the server")

    def __call__(self, found: RunProgress) -> None:
        self._shown.update(self._task, completed=max(0.0, found.elapsed or 0.0), words=_progress_text(found))

    def finish(self, summary: Summary) -> None:
        pass


@contextmanager
def show_progress(plan: LoadPlan, title: str = "load") -> Iterator[LoadProgressLines | LoadProgressBar]:
    """Yield what shows progress: a bar on a terminal, lines in a pipe; both on standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield LoadProgressLines(plan, title)
        return
    columns = (
        bars.SpinnerColumn(finished_text="✓"),
        bars.TextColumn("{task.description}"),
        bars.BarColumn(24),
        bars.TimeElapsedColumn(),
        bars.TextColumn("{task.fields[words]}"),
    )
    with bars.Progress(*columns, console=console, transient=True) as shown:
        yield LoadProgressBar(shown, plan, title)


def _outcome_text(summary: Summary) -> str:
    """A run in a few words."""
    requests = summary.requests
    said = [f"{requests.completed} of {requests.due} requests completed"]
    told = (("ttft", "TTFT"), ("itl", "ITL"), ("e2e", "E2E"))
    said += [f"p99 {name} {seconds(summary.latencies[key].p99)}" for key, name in told if key in summary.latencies]
    if summary.slo:
        said.append(f"SLO {overall_verdict(summary.slo)}")
    return ", ".join(said)


def _progress_text(found: RunProgress) -> str:
    ended = ", ".join(f"{count} {outcome}" for outcome, count in sorted(found.outcomes.items()))
    return f"{found.in_flight} open" + (f", {ended}" if ended else "")


def print_results(figures: Figures, page: Path, show: Callable[[Figures, Console], None], as_json: bool) -> None:
    """The figures on standard output, for people or for scripts, and where the report lies."""
    if as_json:
        click.echo(json.dumps(asdict(figures)))
    else:
        show(figures, Console())
    click.echo(f"Report: {page}", err=as_json)


def show_summary(summary: Summary, console: Console) -> None:
    """The figures that answer most questions; the report has all of them."""
    requests, tokens = summary.requests, summary.tokens
    ended = {
        "completed": requests.completed,
        "cancelled": requests.cancelled,
        "rejected": requests.rejected,
        "timed out": requests.timed_out,
        "failed": requests.failed,
        "unfinished": requests.unfinished,
    }
    if served := describe_served_model(summary.metadata):
        console.print(Text(served))
    console.print(
        f"{requests.due} requests due in {summary.measured_seconds:.1f} s: "
        + ", ".join(f"{count} {name}" for name, count in ended.items() if count)
    )
    console.print(f"{summary.completed_per_second:.2f} requests/s completed, {tokens.per_second:.1f} output tokens/s")
    if words := input_text(summary):
        console.print(Text(words, style="yellow" if input_length_mismatch(summary) else ""))
    console.print(_latencies(summary))
    for code, count in requests.errors.items():
        console.print(Text(f"{count} x {code}: {requests.messages.get(code, '')}", style="red"))
    for bound in summary.slo:
        found = "" if bound.value is None else f"found {slo_value(bound, bound.value)}"
        said = "; ".join(filter(None, (found, bound.note)))
        style = "green" if bound.met else "bold red"
        console.print(Text(f"{_VERDICTS[bound.verdict]}  {bound.text} ({said})", style=style))
    if summary.goodput is not None:
        good = summary.goodput
        console.print(
            f"goodput {good.per_second:.2f} requests/s: {good.of_sent:.1%} of sent, "
            f"{good.of_completed:.1%} of completed"
        )
    if summary.cost is not None and summary.cost.per_million_output is not None:
        console.print(f"{summary.cost.per_million_output:.2f} {summary.cost.currency} for a million output tokens")
    for note in summary.validity.notes:
        console.print(Text(f"NOTE: {note}", style="yellow"))
    for reason in summary.validity.reasons:
        console.print(Text(f"NOT TO BE TRUSTED: {reason}", style="bold red"))


def show_sweep(sweep: Sweep, console: Console) -> None:
    """Its runs, the rate that was found, and what makes that unsure."""
    table = Table(box=None, pad_edge=False)
    rates = (sweep.unit,) if sweep.unit == USERS else (f"{sweep.unit} due", "asked for")
    for name in (*rates, "SLO", "completed/s", "tokens/s", "p99 TTFT", "p99 ITL"):
        table.add_column(name, justify="right")
    for step in sorted(sweep.steps, key=lambda step: step.rate):
        latencies = step.summary.latencies
        asked = f"{step.rate:g}"
        table.add_row(
            *((asked,) if sweep.unit == USERS else (f"{actual_session_rate(step):.4g}", asked)),
            overall_verdict(step.summary.slo),
            f"{step.summary.completed_per_second:.2f}",
            f"{step.summary.tokens.per_second:.0f}",
            *(f"{latencies[name].p99 * 1e3:.0f} ms" if name in latencies else "" for name in ("ttft", "itl")),
        )
    console.print(table)
    _show_notes(sweep, console)
    words = ", ".join(sweep.slo)
    if sweep.highest is None:
        console.print(f"At no rate that was tried the SLO was met: {words}")
        return
    rate = rate_text(sweep, sweep.highest)
    console.print(f"Up to {rate}{repetition_text(sweep)} the SLO is met ({words}); {beyond_text(sweep)}.")
    if sweep.failure:
        console.print(Text(f"No further run could be made: {sweep.failure}", style="bold red"))
    elif sweep.overlaps:
        console.print(Text(not_converged_text(sweep), style="yellow"))
    elif not sweep.converged:
        console.print("For a more precise result, raise --max-runs.")


def _show_notes(sweep: Sweep, console: Console) -> None:
    """Of the runs on both sides of the edge, for the answer rests on these; each once, with the rates that have it."""
    rates: dict[tuple[str, str], dict[float, None]] = {}
    for step in sorted(sweep.steps, key=lambda step: step.rate):
        if step.rate in (sweep.highest, sweep.lowest_missed):
            for bound in step.summary.slo:
                if bound.note:
                    rates.setdefault((bound.text, bound.note), {})[step.rate] = None
    for (bound_text, note), at in rates.items():
        where = " and ".join(f"{rate:g}" for rate in at)
        console.print(Text(f"{where} {sweep.unit}, {bound_text}: {note}", style="yellow"))


def _latencies(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("mean", "p50", "p90", "p95", "p99", "max"):
        table.add_column(name, justify="right")
    for key, name in _ROWS.items():
        spread = summary.latencies.get(key)
        if spread is not None and spread.count:
            table.add_row(name, *_cells(spread))
    return table


def _cells(spread: DistributionSummary) -> list[str]:
    values = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.max)
    return [f"{value * 1e3:.1f} ms" for value in values]
