"""`inflight load sweep`: the highest rate at which a promise holds."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import click

from inflight.commands.load_options import asked_plan, asked_team, load_options
from inflight.commands.load_screen import following, say, show_sweep
from loadtests.reporting import report_sweep
from loadtests.run_directory import RunDirectory
from loadtests.sweeping import PROBE_USERS, Sweeper


@click.command(short_help="Find the highest rate at which a promise holds.")
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
@click.option("--most", type=click.IntRange(1), default=8, show_default=True, help="No more runs than so many.")
@load_options("users", "rate")
@click.option(
    "--out", type=click.Path(path_type=Path), help="A new directory for the runs.  [default: sweep-DATE-TIME]"
)
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object on standard output.")
def command(
    by: Literal["rate", "users"],
    start: float | None,
    tolerance: float,
    most: int,
    out: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Find the highest rate at which a promise holds: one run for each rate, and a report of all of them.

    The rate doubles until the promise breaks, or halves until it holds; then the gap is divided at its geometric mean.
    The lowest rate that broke and the highest that held are tried again where runs are left. Exit code 1 where the
    promise held at no rate or a run could not be made, 130 where Ctrl-C ended the search.

    \b
      inflight load sweep --promise 'p99 ttft <= 500ms' --promise 'p99 itl <= 50ms' --seconds 60
      inflight load sweep --by users --promise 'p95 e2e <= 4s' --input-tokens 256 --output-tokens 128
      inflight load sweep --promise 'p90 ttft <= 1s' --price-per-hour 2.49 --json | jq .highest
    """  # fmt: skip
    plan, team = asked_plan(asked), asked_team(asked)
    if not plan.promise:
        raise click.UsageError("A sweep looks for where a promise breaks; give one: --promise 'p99 ttft <= 500ms'.")
    with RunDirectory.making(out or Path(f"sweep-{datetime.now():%Y%m%d-%H%M%S}")) as directory:
        sweep = Sweeper(plan, directory.path, team, following, by, start, tolerance, most).sweep()
        page = report_sweep(sweep, directory.path)
    say(sweep, page, show_sweep, as_json)
    if sweep.interrupted:
        sys.exit(130)
    sys.exit(0 if sweep.highest is not None and not sweep.failure else 1)
