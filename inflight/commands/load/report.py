"""`inflight load report`: write the report of an earlier run or sweep again, even if it was killed."""

from __future__ import annotations

from pathlib import Path

import click

from inflight.commands.load.display import print_comparison, print_results, show_summary, show_sweep
from inflight.commands.load.options import validated_plan
from inflight.common.schema.cli_options import Lines
from loadtests.analysis.summary import Summary
from loadtests.report.write_reports import PAGE, write_run_report, write_servers_report, write_sweep_report
from loadtests.run.sweep_runner import reevaluate_sweep
from loadtests.run.two_servers import complete_windows
from loadtests.run_directory import RunDirectory


@click.command(short_help="Write the report of a run or a sweep again.")
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--slo",
    type=Lines(),
    multiple=True,
    help="SLO to judge the run by instead of its own (repeatable); saved with the run.",
)
@click.option("--price-per-hour", type=float, help="Price of the server per hour; saved with the run.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
def command(run: Path, slo: tuple[str, ...], price_per_hour: float | None, as_json: bool) -> None:
    """Write the report of a run again from its records: report.html, report.json, requests.csv, timeline.csv.

    In a sweep's directory, this writes the report of each run and then that of the sweep: report.html, sweep.json. In
    that of a test of two servers, it writes the report of each window and compares them again.

    \b
      inflight load report load-20261122-101500
      inflight load report load-20261122-101500 --slo 'p95 e2e <= 3s' --price-per-hour 2.5
      inflight load report sweep-20261122-104000 --slo 'p99 ttft <= 1s'
    """  # fmt: skip
    options = {"slo": slo, "price_per_hour": price_per_hour}

    def report(directory: RunDirectory, sweep: Path | None = None) -> tuple[Summary, Path]:
        with directory.map_write_errors():
            if slo or price_per_hour is not None:
                directory.write_plan(validated_plan(options, directory.plan()))
            return write_run_report(directory, sweep)

    if any(windows := complete_windows(run)):
        for directory in (*windows[0], *windows[1]):
            report(directory, run)
        with RunDirectory(run).map_write_errors():
            comparison = write_servers_report(windows, run)
        print_results(comparison, run / PAGE, print_comparison, as_json)
        return
    if not (run / "sweep.json").exists():
        summary, page = report(RunDirectory(run))
        print_results(summary, page, show_summary, as_json)
        return
    sweep = reevaluate_sweep(run, lambda directory: report(directory, run)[0])
    with RunDirectory(run).map_write_errors():
        page = write_sweep_report(sweep, run)
    print_results(sweep, page, show_sweep, as_json)
