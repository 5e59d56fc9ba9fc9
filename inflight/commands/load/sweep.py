"""`inflight load sweep`: the highest rate at which an SLO is met."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import click

from inflight.commands.load.display import print_results, show_progress, show_sweep
from inflight.commands.load.options import load_options, plan_from_command, worker_spec_from_options
from loadtests.report.write_reports import write_sweep_report
from loadtests.run.sweep_runner import PROBE_USERS, SweepRunner
from loadtests.run_directory import RunDirectory


@click.command(short_help="Find the highest rate at which an SLO is met.")
@click.option(
    "--by",
    type=click.Choice(["rate", "users"]),
    default="rate",
    show_default=True,
    help="Look for sessions a second (open loop), or for users (closed loop).",
)
@click.option(
    "--start",
    type=click.FloatRange(0, min_open=True),
    help=f"The rate or number of users to begin with.  [default: what a short run shows; {PROBE_USERS} of --by users]",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, min_open=True),
    default=0.1,
    show_default=True,
    help="How near the rate is to be known, relatively.",
)
@click.option("--max-runs", type=click.IntRange(1), default=8, show_default=True, help="No more runs than so many.")
@load_options("users", "rate")
@click.option(
    "--out", type=click.Path(path_type=Path), help="A new directory for the runs.  [default: sweep-DATE-TIME]"
)
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object on standard output.")
def command(
    by: Literal["rate", "users"],
    start: float | None,
    tolerance: float,
    max_runs: int,
    out: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Find the highest rate at which an SLO is met: one run for each rate, and a report of all of them.

    The rate doubles until the SLO is missed, or halves until it holds; then the gap is divided at its geometric mean.
    The lowest rate that broke and the highest that held are tried again where runs are left. Exit code 1 where the
    SLO was met at no rate or a run could not be made, 130 where Ctrl-C ended the search.

    \b
      inflight load sweep --slo 'p99 ttft <= 500ms' --slo 'p99 itl <= 50ms' --seconds 60
      inflight load sweep --by users --slo 'p95 e2e <= 4s' --input-tokens 256 --output-tokens 128
      inflight load sweep --slo 'p90 ttft <= 1s' --price-per-hour 2.49 --json | jq .highest
    """  # fmt: skip
    plan, team = plan_from_command(asked), worker_spec_from_options(asked)
    if not plan.slo:
        raise click.UsageError("A sweep looks for where an SLO is missed; give one: --slo 'p99 ttft <= 500ms'.")
    with RunDirectory.creating(out or Path(f"sweep-{datetime.now():%Y%m%d-%H%M%S}")) as directory:
        sweep = SweepRunner(plan, directory.path, team, show_progress, by, start, tolerance, max_runs).sweep()
        page = write_sweep_report(sweep, directory.path)
    print_results(sweep, page, show_sweep, as_json)
    if sweep.interrupted:
        sys.exit(130)
    sys.exit(0 if sweep.highest is not None and not sweep.failure else 1)
