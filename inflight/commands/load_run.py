"""`inflight load run`: one run, and its report."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from inflight.commands.load_options import asked_plan, asked_team, load_options
from inflight.commands.load_screen import following, say, show
from loadtests.analysis.summary import Summary
from loadtests.conductor import make_run
from loadtests.reporting import report_run
from loadtests.run_directory import RunDirectory


@click.command(short_help="Put load on a server, and report what came of it.")
@load_options()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="A new directory for the run.  [default: load-DATE-TIME]",
)
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object on standard output.")
def command(out: Path | None, as_json: bool, **asked: Any) -> None:
    """Put load on a server, and report what came of it: figures here, and one HTML file to look at.

    Latency counts from the moment a request was due, so a server that is too slow can't hide by slowing the load down.
    Ctrl-C ends a run early and reports what there is, with exit code 130. Exit code 1 where a promise was broken, no
    request was completed or the run failed.

    \b
      inflight load run
      inflight load run --rate 4 --seconds 120 --promise 'p99 ttft <= 500ms' --promise 'p99 itl <= 50ms'
      inflight load run --users 1..64/120s --input-tokens lognormal:200,0.6 --output-tokens 128
      inflight load run --trace sample:azure --speed 10 --address http://127.0.0.1:8000
      inflight load run --plan load-20261122-101500/plan.json --workers 2
    """  # fmt: skip
    plan, team = asked_plan(asked), asked_team(asked)
    with RunDirectory.making(out or Path(f"load-{datetime.now():%Y%m%d-%H%M%S}")) as directory:
        with following(plan) as shown:
            interrupted = make_run(plan, directory, team, shown)
        summary, page = report_run(directory)
        shown.ended(summary)
    say(summary, page, show, as_json)
    if interrupted:
        sys.exit(130)
    sys.exit(exit_code(summary))


def exit_code(summary: Summary) -> int:
    """1 where a promise was broken, or nothing was completed though some client stayed; else 0."""
    requests = summary.requests
    nothing_done = requests.staying and not requests.completed
    return 1 if nothing_done or any(not bound.kept for bound in summary.promise) else 0
