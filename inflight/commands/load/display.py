"""Show a load test run on a terminal: a progress bar, then the figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import click
from rich import progress as bars
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtests.analysis.comparison.result import Comparison
from loadtests.analysis.summary import AuditCheck, EncoderSide, Summary
from loadtests.analysis.sweep import USERS, Sweep, actual_session_rate
from loadtests.plan import LoadPlan
from loadtests.report.comparison import changes_table, comparison_headline
from loadtests.report.formats import seconds
from loadtests.report.headline import cost_text, input_length_mismatch, input_text, missing_figures_text
from loadtests.report.slo_text import overall_verdict, slo_value
from loadtests.report.sweep import not_converged_text, slo_notes, sweep_headline, validity_notes
from loadtests.run.controller import RunProgress
from loadtests.served_model import describe_served_model

Figures = TypeVar("Figures", Summary, Sweep, Comparison)
_LINE_SECONDS = 10.0
"""Seconds between two lines in a pipe."""
_VERDICTS = {"met": "met   ", "missed": "MISSED", "not evaluated": "NOT EVALUATED"}
_ROWS = {
    "ttft": "TTFT",
    "ttft_sent": "TTFT (sent)",
    "itl": "ITL",
    "tpot": "TPOT",
    "e2e": "E2E",
    "e2e_sent": "E2E (sent)",
}


class LoadProgressLines:
    """Progress as a line every ten seconds, and a last line with the outcome of the run."""

    def __init__(self, plan: LoadPlan, title: str) -> None:
        self._title = title
        self._end = plan.end
        self._next = _LINE_SECONDS

    def __call__(self, progress: RunProgress) -> None:
        if progress.elapsed is not None and progress.elapsed >= self._next:
            click.echo(
                f"{self._title}: {progress.elapsed:.0f} of {self._end:.0f} s: {_progress_text(progress)}", err=True
            )
            self._next = progress.elapsed + _LINE_SECONDS

    def finish(self, summary: Summary) -> None:
        click.echo(f"{self._title}: {_outcome_text(summary)}", err=True)


class LoadProgressBar:
    """Progress as a bar on a terminal; the figures replace it."""

    def __init__(self, shown: bars.Progress, plan: LoadPlan, title: str) -> None:
        self._shown = shown
        self._task = shown.add_task(title, total=plan.end, words="inspecting the server")

    def __call__(self, progress: RunProgress) -> None:
        self._shown.update(self._task, completed=max(0.0, progress.elapsed or 0.0), words=_progress_text(progress))

    def finish(self, summary: Summary) -> None:
        pass


@contextmanager
def show_progress(plan: LoadPlan, title: str = "load") -> Iterator[LoadProgressLines | LoadProgressBar]:
    """Yield a progress display on standard error: a bar on a terminal, lines in a pipe."""
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
    """Summarize a run in a few words."""
    requests = summary.requests
    parts = [f"{requests.completed} of {requests.due} requests completed"]
    if requests.empty:
        parts.append(f"{requests.empty} of them with an empty answer")
    shown = (("ttft", "TTFT"), ("itl", "ITL"), ("e2e", "E2E"))
    parts += [f"p99 {name} {seconds(summary.latencies[key].p99)}" for key, name in shown if key in summary.latencies]
    if summary.slo:
        parts.append(f"SLO {overall_verdict(summary.slo)}")
    return ", ".join(parts)


def _progress_text(progress: RunProgress) -> str:
    ended = ", ".join(f"{count} {outcome}" for outcome, count in sorted(progress.outcomes.items()))
    return f"{progress.in_flight} open" + (f", {ended}" if ended else "")


def print_results(figures: Figures, page: Path, show: Callable[[Figures, Console], None], as_json: bool) -> None:
    """Print the figures, as text or as JSON, and the path of the report."""
    if as_json:
        click.echo(json.dumps(figures.as_json()))
    else:
        show(figures, Console())
    click.echo(f"Report: {page}", err=as_json)


def show_summary(summary: Summary, console: Console) -> None:
    """Show the most important figures; the report has all of them."""
    requests = summary.requests
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
    throughput, texts = summary.throughput, summary.texts
    done = f"{summary.completed_per_second:.2f} requests/s completed, "
    if texts is not None and texts.real_time_factor is not None:
        done += f"{texts.audio_per_second:.1f} s of audio/s, real-time factor {texts.real_time_factor:.3f}"
    else:
        done += f"{throughput.value:.1f} {throughput.unit}"
        done += "" if texts is None else f", {texts.tokens_per_second:.1f} tokens/s"
    console.print(done)
    if isinstance(summary.server, EncoderSide) and summary.server.padding is not None:
        console.print(f"{summary.server.padding:.3f} padded tokens for each real one")
    if words := input_text(summary):
        console.print(Text(words, style="yellow" if input_length_mismatch(summary) else ""))
    console.print(_latencies(summary))
    for code, count in requests.errors.items():
        console.print(Text(f"{count} x {code}: {requests.messages.get(code, '')}", style="red"))
    for bound in summary.slo:
        actual = "" if bound.value is None else f"found {slo_value(bound, bound.value)}"
        detail = "; ".join(filter(None, (actual, bound.note)))
        style = "green" if bound.met else "bold red"
        console.print(Text(f"{_VERDICTS[bound.verdict]}  {bound.text} ({detail})", style=style))
    if summary.goodput is not None:
        good = summary.goodput
        console.print(
            f"goodput {good.per_second:.2f} requests/s: {good.of_sent:.1%} of sent, "
            f"{good.of_completed:.1%} of completed"
        )
    if words := cost_text(summary):
        console.print(words)
    _print_audit(summary.audit, console)
    for note in (*summary.validity.notes, *filter(None, (missing_figures_text(summary),))):
        console.print(Text(f"NOTE: {note}", style="yellow"))
    for reason in summary.validity.reasons:
        console.print(Text(f"UNRELIABLE: {reason}", style="bold red"))


def show_sweep(sweep: Sweep, console: Console) -> None:
    """Show the runs of a sweep, the rate that it found with its cost, and what makes the rate uncertain, as its page
    does."""
    table = Table(box=None, pad_edge=False)
    rates = (sweep.unit,) if sweep.unit == USERS else (f"{sweep.unit} due", "requested")
    encoder = any(step.summary.texts is not None for step in sweep.steps)
    shown = {"e2e": "p99 E2E"} if encoder else {"ttft": "p99 TTFT", "itl": "p99 ITL"}
    for name in (*rates, "SLO", "completed/s", "texts/s" if encoder else "tokens/s", *shown.values()):
        table.add_column(name, justify="right")
    for step in sorted(sweep.steps, key=lambda step: step.rate):
        latencies = step.summary.latencies
        requested = f"{step.rate:g}"
        table.add_row(
            *((requested,) if sweep.unit == USERS else (f"{actual_session_rate(step):.4g}", requested)),
            overall_verdict(step.summary.slo),
            f"{step.summary.completed_per_second:.2f}",
            f"{step.summary.throughput.value:.0f}",
            *(f"{latencies[name].p99 * 1e3:.0f} ms" if name in latencies else "" for name in shown),
        )
    console.print(table)
    for note in slo_notes(sweep):
        console.print(Text(note, style="yellow"))
    for reason in validity_notes(sweep):
        console.print(Text(f"UNRELIABLE: {reason}", style="bold red"))
    console.print(Text(sweep_headline(sweep)), soft_wrap=True)
    if words := not_converged_text(sweep):
        console.print(Text(words, style="yellow"))


def print_comparison(comparison: Comparison, console: Console) -> None:
    for warning in comparison.warnings:
        console.print(Text(f"Warning: {warning}", style="yellow"))
    report = changes_table(comparison)
    table = Table("", box=None, pad_edge=False)
    for name in report.head[1:5]:
        table.add_column(name, justify="right")
    table.add_column("")
    for change, (metric, before, after, *interval, _, verdict) in zip(comparison.changes, report.cells, strict=True):
        colours = {"better": "green", "worse": "yellow"}
        style = "bold red" if change.regression else colours.get(change.verdict.value, "")
        style = style if comparison.threshold is not None else ""
        word = verdict.text.upper() if change.regression else verdict.text
        table.add_row(*(cell.text for cell in (metric, before, after, *interval)), Text(word, style=style))
    console.print(table)
    if comparison.threshold is None:
        console.print(Text(comparison_headline(comparison)), soft_wrap=True)
    for name, checks in comparison.audits.items():
        console.print(f"Audit of {name}:")
        _print_audit(checks, console)
    if comparison.threshold is None or comparison.plans_differ:
        return
    many = len(comparison.regressions)
    if comparison.inconclusive:
        console.print(
            "INCONCLUSIVE: there are too few requests to judge most figures; run both longer, or several times, or pass"
            " --allow-inconclusive."
        )
        return
    words = f"worse by more than {comparison.threshold:.0%} with confidence"
    console.print(f"{many} figure{'s' if many != 1 else ''} {words}" if many else f"No figure is {words}.")


def _print_audit(checks: Iterable[AuditCheck], console: Console) -> None:
    for check in checks:
        style = {True: "green", False: "bold red", None: "yellow"}[check.passed]
        verdict = check.verdict.upper() if check.passed is False else check.verdict
        console.print(Text(f"{verdict:11}  {check.test}, {check.name} ({check.note})", style=style))


def _latencies(summary: Summary) -> Table:
    columns = ("mean", "p50", "p90", "p95", "p99", "max")
    table = Table("", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right")
    for key, name in _ROWS.items():
        distribution = summary.latencies.get(key)
        if distribution is not None and distribution.count:
            table.add_row(name, *(f"{getattr(distribution, column) * 1e3:.1f} ms" for column in columns))
    return table
