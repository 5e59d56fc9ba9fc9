"""`inflight load run`: run one load test and write its report."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from inflight.commands.load.display import print_results, show_progress, show_summary
from inflight.commands.load.options import load_options, plan_from_command, worker_spec_from_options
from inflight.commands.option_sections import SectionedCommand, section
from loadtests.analysis.summary import Summary
from loadtests.report.write_reports import write_run_report
from loadtests.run.controller import run_load_test
from loadtests.run_directory import RunDirectory


@click.command(cls=SectionedCommand, short_help="Run a load test and write a report.")
@load_options()
@section(
    "Verdict and report",
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        help="New directory for the run.  [default: load-DATE-TIME]",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object."),
)
def command(out: Path | None, as_json: bool, **options: Any) -> None:
    """Run a load test: print the figures and write a report as one HTML file.

    Latency is measured from the time a request was due, so a slow server cannot hide by slowing down the load. Ctrl-C
    ends a run early and reports what was measured, with exit code 130. Exit code 1 if an SLO was missed, no request was
    completed, all answers were empty or the run failed.

    \b
      inflight load run
      inflight load run --rate 4 --seconds 120 --slo 'p99 ttft <= 500ms' --slo 'p99 itl <= 50ms'
      inflight load run --users 1..64/120s --input-tokens lognormal:200,0.6 --output-tokens 128
      inflight load run --trace sample:azure --speed 10 --server http://127.0.0.1:8000
      inflight load run --plan load-20261122-101500/plan.json --workers 2
    """  # fmt: skip
    plan, team = plan_from_command(options), worker_spec_from_options(options)
    with RunDirectory.creating(out or Path(f"load-{datetime.now():%Y%m%d-%H%M%S}")) as directory:
        with show_progress(plan) as shown:
            interrupted = run_load_test(plan, directory, team, shown)
        summary, page = write_run_report(directory)
        shown.finish(summary)
    print_results(summary, page, show_summary, as_json)
    if interrupted:
        sys.exit(130)
    sys.exit(exit_code(summary))


def exit_code(summary: Summary) -> int:
    """Return 1 if an SLO was missed, or if no request was due, or completed with more than an empty answer, although
    not all clients disconnected; else 0."""
    requests = summary.requests
    nothing_done = not requests.answered and (requests.not_cancelled or not requests.due)
    return 1 if nothing_done or any(not bound.met for bound in summary.slo) else 0
