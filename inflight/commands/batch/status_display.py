"""How a job's standing looks to people."""

from __future__ import annotations

from collections.abc import Iterator

import click

from inflight.batch.reporting import formatting
from inflight.batch.reporting.progress import JobProgress
from inflight.batch.reporting.status import JobStatus


def print_status(status: JobStatus) -> None:
    """A line for each thing that is known of it."""
    for name, line in _lines(status):
        click.echo(f"{name:<8} {line}")


def print_status_line(status: JobStatus) -> None:
    """One line, for a list of jobs."""
    rows = "" if status.progress is None else f"{formatting.format_rows(status.progress)}"
    ahead = formatting.format_eta(status.progress) if status.running and status.progress else ""
    click.echo(f"{status.path}: {status.state}" + "".join(f", {part}" for part in (rows, ahead) if part))


def _lines(status: JobStatus) -> Iterator[tuple[str, str]]:
    yield "job", str(status.path)
    yield "state", status.state + (f": {status.message}" if status.message else "")
    if status.progress is not None:
        yield from _progress_lines(status.progress, status.running)


def _progress_lines(progress: JobProgress, running: bool) -> Iterator[tuple[str, str]]:
    ahead = formatting.format_eta(progress) if running else ""
    yield "rows", formatting.format_rows(progress) + (f", {ahead}" if ahead else "")
    counts = progress.counts
    yield "", f"{counts.ok:,} answered, {counts.error:,} errors, {formatting.format_failures(progress)}"
    if progress.out_of_order:
        yield (
            "",
            f"{progress.out_of_order:,} of them wait in the job's state for row {progress.next_row:,}, to keep the"
            " order",
        )
    if running:
        life = progress.throughput.this_run
        yield (
            "speed",
            f"{formatting.format_throughput(progress)}; in this run {formatting.format_number(life.output_tokens)}"
            " tokens/s",
        )
        most = "" if progress.concurrency_limit is None else f" of {progress.concurrency_limit:,}"
        yield "flight", f"{progress.in_flight:,}{most} in flight, {progress.pending_retries:,} to be sent again"
        for server in progress.servers:
            yield "server", f"{server.name}: {f'up, {server.in_flight:,} in flight' if server.up else 'DOWN'}"
        yield "process", f"{progress.pid} on {progress.host}"
    yield "tokens", f"{counts.input_tokens:,} of prompts, {counts.output_tokens:,} of answers"
    lives = "" if counts.runs <= 1 else f" in {counts.runs} runs"
    yield "time", formatting.format_duration(counts.seconds) + lives
    if progress.cost is not None:
        yield "cost", formatting.format_money(progress.cost.spent)
