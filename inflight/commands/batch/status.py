"""`inflight batch status`: show the status of jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import click

from inflight.batch.job.directory import JobDirectory
from inflight.batch.reporting import formatting
from inflight.batch.reporting.progress import JobProgress
from inflight.batch.reporting.status import JobStatus, find_jobs, job_status
from inflight.commands.options.numbers import Seconds


def print_status(status: JobStatus) -> None:
    """Print the status of one job, one line per topic."""
    for name, line in _lines(status):
        click.echo(f"{name:<8} {line}")


def print_status_line(status: JobStatus) -> None:
    """Print one line for the job, for a list of jobs."""
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
        yield "", f"{progress.out_of_order:,} of them wait for row {progress.next_row:,} to keep the order"
    if running:
        this_run = progress.throughput.this_run
        yield (
            "speed",
            f"{formatting.format_throughput(progress)}; in this run {formatting.format_number(this_run.output_tokens)}"
            " tokens/s",
        )
        yield "flight", f"{formatting.format_flight(progress)}, {progress.pending_retries:,} waiting for a retry"
        for server in progress.servers:
            yield "server", f"{server.name}: {f'up, {server.in_flight:,} in flight' if server.up else 'DOWN'}"
        yield "process", f"{progress.pid} on {progress.host}"
    yield "tokens", f"{counts.input_tokens:,} of input, {counts.output_tokens:,} of output"
    runs = "" if counts.runs <= 1 else f" in {counts.runs} runs"
    yield "time", formatting.format_duration(counts.seconds) + runs
    if progress.cost is not None:
        yield "cost", formatting.format_money(progress.cost.spent)


@click.command(short_help="Show the status of a job.")
@click.argument("path", required=False)
@click.option(
    "--watch", type=Seconds(exclusive=True), metavar="SECONDS", help="Refresh at this interval until no job runs."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per job, one per line.")
def command(path: str | None, watch: float | None, as_json: bool) -> None:
    """Show the status of the job at PATH; without PATH, of all jobs in this folder.

    PATH is the job's directory, or its output's path or address. A job whose process was killed is shown as such, with
    the command to resume it. Exit codes: 0 if there is a job, in any state; 1 if there is none.

    \b
      inflight batch status
      inflight batch status answers.jsonl --watch 2
      inflight batch status answers.jsonl --json | jq -r .state
    """  # fmt: skip
    jobs = find_jobs(Path()) if path is None else [JobDirectory.find(path)]
    running = _print_all(jobs, path is None, as_json, watch is not None)
    try:
        while running and watch is not None:
            time.sleep(watch)
            running = _print_all(jobs, path is None, as_json, True)
    except KeyboardInterrupt:
        pass  # how --watch ends


def _print_all(jobs: list[JobDirectory], short: bool, as_json: bool, again: bool) -> bool:
    """Print the status of the jobs; return whether any of them runs."""
    statuses = [job_status(job) for job in jobs]
    if again and not as_json:
        click.clear()  # does nothing unless standard output is a terminal
    for status in statuses:
        if as_json:
            click.echo(json.dumps(status.as_dict()))
        else:
            (print_status_line if short else print_status)(status)
    return any(status.running for status in statuses)
