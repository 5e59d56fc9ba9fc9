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

from loadtests.analysis.summary import Spread, Summary
from loadtests.analysis.sweep import USERS, Sweep, due_of
from loadtests.conductor import Progress
from loadtests.plan import Plan
from loadtests.report.bounds import bound_value, verdict
from loadtests.report.formats import seconds
from loadtests.report.headline import input_words, inputs_off
from loadtests.report.sweep import beyond, rate_words, seen, unsettled
from loadtests.served import served_words

Figures = TypeVar("Figures", Summary, Sweep)
_LINE_SECONDS = 10.0
"""How often a pipe gets a line."""
_VERDICTS = {"kept": "kept  ", "broken": "BROKEN", "not judged": "NOT JUDGED"}
_ROWS = {
    "ttft": "TTFT",
    "ttft_sent": "TTFT, from sending",
    "itl": "ITL",
    "tpot": "TPOT",
    "e2e": "E2E",
    "e2e_sent": "E2E, from sending",
}


class Lines:
    """A line every ten seconds, and one at the end that says what came of the run."""

    def __init__(self, plan: Plan, title: str) -> None:
        self._title = title
        self._end = plan.end
        self._next = _LINE_SECONDS

    def __call__(self, found: Progress) -> None:
        if found.t is not None and found.t >= self._next:
            click.echo(f"{self._title}: {found.t:.0f} of {self._end:.0f} s: {_words(found)}", err=True)
            self._next = found.t + _LINE_SECONDS

    def ended(self, summary: Summary) -> None:
        click.echo(f"{self._title}: {_ended(summary)}", err=True)


class Bar:
    """A bar on a terminal, which the figures take the place of."""

    def __init__(self, shown: bars.Progress, plan: Plan, title: str) -> None:
        self._shown = shown
        self._task = shown.add_task(title, total=plan.end, words="looking at the server")

    def __call__(self, found: Progress) -> None:
        self._shown.update(self._task, completed=max(0.0, found.t or 0.0), words=_words(found))

    def ended(self, summary: Summary) -> None:
        pass


@contextmanager
def following(plan: Plan, title: str = "load") -> Iterator[Lines | Bar]:
    """Yield what shows progress: a bar on a terminal, lines in a pipe; both on standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(plan, title)
        return
    columns = (
        bars.SpinnerColumn(finished_text="✓"),
        bars.TextColumn("{task.description}"),
        bars.BarColumn(24),
        bars.TimeElapsedColumn(),
        bars.TextColumn("{task.fields[words]}"),
    )
    with bars.Progress(*columns, console=console, transient=True) as shown:
        yield Bar(shown, plan, title)


def _ended(summary: Summary) -> str:
    """A run in a few words."""
    requests = summary.requests
    said = [f"{requests.completed} of {requests.due} requests completed"]
    told = (("ttft", "TTFT"), ("itl", "ITL"), ("e2e", "E2E"))
    said += [f"p99 {name} {seconds(summary.latencies[key].p99)}" for key, name in told if key in summary.latencies]
    if summary.promise:
        said.append(f"promise {verdict(summary.promise)}")
    return ", ".join(said)


def _words(found: Progress) -> str:
    ended = ", ".join(f"{count} {outcome}" for outcome, count in sorted(found.outcomes.items()))
    return f"{found.open} open" + (f", {ended}" if ended else "")


def say(figures: Figures, page: Path, show: Callable[[Figures, Console], None], as_json: bool) -> None:
    """The figures on standard output, for people or for scripts, and where the report lies."""
    if as_json:
        click.echo(json.dumps(asdict(figures)))
    else:
        show(figures, Console())
    click.echo(f"Report: {page}", err=as_json)


def show(summary: Summary, console: Console) -> None:
    """The figures that answer most questions; the report has all of them."""
    requests, tokens = summary.requests, summary.tokens
    ended = {
        "completed": requests.completed,
        "cancelled": requests.cancelled,
        "rejected": requests.rejected,
        "late": requests.late,
        "failed": requests.failed,
        "unfinished": requests.unfinished,
    }
    if served := served_words(summary.facts):
        console.print(Text(served))
    console.print(
        f"{requests.due} requests due in {summary.measured_seconds:.1f} s: "
        + ", ".join(f"{count} {name}" for name, count in ended.items() if count)
    )
    console.print(f"{summary.completed_per_second:.2f} requests/s completed, {tokens.per_second:.1f} output tokens/s")
    if words := input_words(summary):
        console.print(Text(words, style="yellow" if inputs_off(summary) else ""))
    console.print(_latencies(summary))
    for code, count in requests.errors.items():
        console.print(Text(f"{count} x {code}: {requests.messages.get(code, '')}", style="red"))
    for bound in summary.promise:
        found = "" if bound.found is None else f"found {bound_value(bound, bound.found)}"
        said = "; ".join(filter(None, (found, bound.note)))
        style = "green" if bound.kept else "bold red"
        console.print(Text(f"{_VERDICTS[bound.verdict]}  {bound.text} ({said})", style=style))
    if summary.goodput is not None:
        good = summary.goodput
        console.print(
            f"goodput {good.per_second:.2f} requests/s: {good.of_sent:.1%} of sent, "
            f"{good.of_completed:.1%} of completed"
        )
    if summary.cost is not None and summary.cost.per_million_output is not None:
        console.print(f"{summary.cost.per_million_output:.2f} {summary.cost.currency} for a million output tokens")
    for note in summary.grade.notes:
        console.print(Text(f"NOTE: {note}", style="yellow"))
    for reason in summary.grade.reasons:
        console.print(Text(f"NOT TO BE TRUSTED: {reason}", style="bold red"))


def show_sweep(sweep: Sweep, console: Console) -> None:
    """Its runs, the rate that was found, and what makes that unsure."""
    table = Table(box=None, pad_edge=False)
    rates = (sweep.unit,) if sweep.unit == USERS else (f"{sweep.unit} due", "asked for")
    for name in (*rates, "promise", "completed/s", "tokens/s", "p99 TTFT", "p99 ITL"):
        table.add_column(name, justify="right")
    for step in sorted(sweep.steps, key=lambda step: step.rate):
        latencies = step.summary.latencies
        asked = f"{step.rate:g}"
        table.add_row(
            *((asked,) if sweep.unit == USERS else (f"{due_of(step):.4g}", asked)),
            verdict(step.summary.promise),
            f"{step.summary.completed_per_second:.2f}",
            f"{step.summary.tokens.per_second:.0f}",
            *(f"{latencies[name].p99 * 1e3:.0f} ms" if name in latencies else "" for name in ("ttft", "itl")),
        )
    console.print(table)
    _show_notes(sweep, console)
    words = ", ".join(sweep.promise)
    if sweep.highest is None:
        console.print(f"At no rate that was tried the promise held: {words}")
        return
    rate = rate_words(sweep, sweep.highest)
    console.print(f"Up to {rate}{seen(sweep)} the promise holds ({words}); {beyond(sweep)}.")
    if sweep.failure:
        console.print(Text(f"No further run could be made: {sweep.failure}", style="bold red"))
    elif sweep.overlaps:
        console.print(Text(unsettled(sweep), style="yellow"))
    elif not sweep.settled:
        console.print("For a more precise result, raise --most.")


def _show_notes(sweep: Sweep, console: Console) -> None:
    """Of the runs on both sides of the edge, for the answer rests on these; each once, with the rates that have it."""
    rates: dict[tuple[str, str], dict[float, None]] = {}
    for step in sorted(sweep.steps, key=lambda step: step.rate):
        if step.rate in (sweep.highest, sweep.lowest_broken):
            for bound in step.summary.promise:
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


def _cells(spread: Spread) -> list[str]:
    values = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.max)
    return [f"{value * 1e3:.1f} ms" for value in values]
