"""`inflight load report`: the report of a run that was made before, even of one that was killed."""

from __future__ import annotations

from pathlib import Path

import click

from inflight.commands.load_options import checked_plan
from inflight.commands.load_screen import say, show
from loadtests.reporting import report_run
from loadtests.run_directory import RunDirectory


@click.command(short_help="Make the report of a run anew.")
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--promise", multiple=True, help="Judge it by these bounds instead of its own; they stay with the run.")
@click.option("--price-per-hour", type=float, help="What an hour of the server costs; it stays with the run.")
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object on standard output.")
def command(run: Path, promise: tuple[str, ...], price_per_hour: float | None, as_json: bool) -> None:
    """Make the report of a run anew from its records: report.html, report.json, requests.csv, timeline.csv.

    \b
      inflight load report load-20261122-101500
      inflight load report load-20261122-101500 --promise 'p95 e2e <= 3s' --price-per-hour 2.5
    """  # fmt: skip
    directory = RunDirectory(run)
    given = {"promise": promise, "price_per_hour": price_per_hour}
    with directory.writing():
        if promise or price_per_hour is not None:
            directory.write_plan(checked_plan(given, directory.plan()))
        summary, page = report_run(directory)
    say(summary, page, show, as_json)
