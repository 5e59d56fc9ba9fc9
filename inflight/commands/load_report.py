"""`inflight load report`: the report of a run or a sweep that was made before, even of a run that was killed."""

from __future__ import annotations

from pathlib import Path

import click

from inflight.commands.connection_options import Lines
from inflight.commands.load_options import checked_plan
from inflight.commands.load_screen import say, show, show_sweep
from loadtests.analysis.summary import Summary
from loadtests.reporting import report_run, report_sweep
from loadtests.run_directory import RunDirectory
from loadtests.sweeping import judged_anew


@click.command(short_help="Make the report of a run or a sweep anew.")
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--promise",
    type=Lines(),
    multiple=True,
    help="Judge it by these bounds instead of its own; they stay with the run.",
)
@click.option("--price-per-hour", type=float, help="What an hour of the server costs; it stays with the run.")
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object on standard output.")
def command(run: Path, promise: tuple[str, ...], price_per_hour: float | None, as_json: bool) -> None:
    """Make the report of a run anew from its records: report.html, report.json, requests.csv, timeline.csv.

    In a sweep's directory that is done for each of its runs, and then for the sweep: report.html, sweep.json.

    \b
      inflight load report load-20261122-101500
      inflight load report load-20261122-101500 --promise 'p95 e2e <= 3s' --price-per-hour 2.5
      inflight load report sweep-20261122-104000 --promise 'p99 ttft <= 1s'
    """  # fmt: skip
    given = {"promise": promise, "price_per_hour": price_per_hour}

    def report(directory: RunDirectory, sweep: Path | None = None) -> tuple[Summary, Path]:
        with directory.writing():
            if promise or price_per_hour is not None:
                directory.write_plan(checked_plan(given, directory.plan()))
            return report_run(directory, sweep)

    if not (run / "sweep.json").exists():
        summary, page = report(RunDirectory(run))
        say(summary, page, show, as_json)
        return
    sweep = judged_anew(run, lambda directory: report(directory, run)[0])
    with RunDirectory(run).writing():
        page = report_sweep(sweep, run)
    say(sweep, page, show_sweep, as_json)
