"""`inflight load sweep`: find the highest rate at which an SLO is met."""

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
    help="What to vary: sessions per second (open loop) or users (closed loop).",
)
@click.option(
    "--start",
    type=click.FloatRange(0, min_open=True),
    help=f"Initial rate or number of users.  [default: measured by a short run; {PROBE_USERS} with --by users]",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, min_open=True),
    default=0.1,
    show_default=True,
    help="Relative precision of the result.",
)
@click.option("--max-runs", type=click.IntRange(1), default=8, show_default=True, help="Maximum number of runs.")
@load_options("users", "rate")
@click.option("--out", type=click.Path(path_type=Path), help="New directory for the runs.  [default: sweep-DATE-TIME]")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
def command(
    by: Literal["rate", "users"],
    start: float | None,
    tolerance: float,
    max_runs: int,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the highest rate at which an SLO is met: one run for each rate, and a report of all of them.

    The rate is doubled until the SLO is missed, or halved until it is met; then the gap is bisected at its geometric
    mean. If runs are left, the lowest rate that missed and the highest that met the SLO are repeated. Exit code 1 if no
    rate met the SLO or a run failed, 130 if Ctrl-C ended the search.

    \b
      inflight load sweep --slo 'p99 ttft <= 500ms' --slo 'p99 itl <= 50ms' --seconds 60
      inflight load sweep --by users --slo 'p95 e2e <= 4s' --input-tokens 256 --output-tokens 128
      inflight load sweep --slo 'p90 ttft <= 1s' --price-per-hour 2.49 --json | jq .highest
    """  # fmt: skip
    plan, team = plan_from_command(options), worker_spec_from_options(options)
    if not plan.slo:
        raise click.UsageError("A sweep needs an SLO; give one, such as --slo 'p99 ttft <= 500ms'.")
    with RunDirectory.creating(out or Path(f"sweep-{datetime.now():%Y%m%d-%H%M%S}")) as directory:
        sweep = SweepRunner(plan, directory.path, team, show_progress, by, start, tolerance, max_runs).sweep()
        page = write_sweep_report(sweep, directory.path)
    print_results(sweep, page, show_sweep, as_json)
    if sweep.interrupted:
        sys.exit(130)
    sys.exit(0 if sweep.highest is not None and not sweep.failure else 1)
