"""How a job's standing looks to people."""

from __future__ import annotations

from collections.abc import Iterator

import click

from inflight.batch.seen import words
from inflight.batch.seen.progress import Progress
from inflight.batch.seen.standing import Standing


def show(standing: Standing) -> None:
    """A line for each thing that is known of it."""
    for name, line in _lines(standing):
        click.echo(f"{name:<8} {line}")


def show_short(standing: Standing) -> None:
    """One line, for a list of jobs."""
    rows = "" if standing.progress is None else f"{words.rows(standing.progress)}"
    ahead = words.ahead(standing.progress) if standing.running and standing.progress else ""
    click.echo(f"{standing.path}: {standing.state}" + "".join(f", {part}" for part in (rows, ahead) if part))


def _lines(standing: Standing) -> Iterator[tuple[str, str]]:
    yield "job", str(standing.path)
    yield "state", standing.state + (f": {standing.sentence}" if standing.sentence else "")
    if standing.progress is not None:
        yield from _figures(standing.progress, standing.running)


def _figures(progress: Progress, running: bool) -> Iterator[tuple[str, str]]:
    ahead = words.ahead(progress) if running else ""
    yield "rows", words.rows(progress) + (f", {ahead}" if ahead else "")
    counts = progress.counts
    yield "", f"{counts.ok:,} answered, {counts.error:,} errors, {words.troubles(progress)}"
    if progress.held:
        yield "", f"{progress.held:,} of them wait in the job's state for row {progress.next_row:,}, to keep the order"
    if running:
        life = progress.speed.life
        yield "speed", f"{words.speed(progress)}; in this run {words.number(life.output_tokens)} tokens/s"
        most = "" if progress.limit is None else f" of {progress.limit:,}"
        yield "flight", f"{progress.in_flight:,}{most} in flight, {progress.waiting:,} to be sent again"
        for server in progress.servers:
            yield "server", f"{server.name}: {f'up, {server.in_flight:,} in flight' if server.up else 'DOWN'}"
        yield "process", f"{progress.pid} on {progress.host}"
    yield "tokens", f"{counts.input_tokens:,} of prompts, {counts.output_tokens:,} of answers"
    lives = "" if counts.lives <= 1 else f" in {counts.lives} runs"
    yield "time", words.duration(counts.seconds) + lives
    if progress.cost is not None:
        yield "cost", words.money(progress.cost.spent)
