"""`inflight load run`: run one load test and write its report."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import click

from inflight.commands.load.display import print_comparison, print_results, show_progress, show_summary
from inflight.commands.load.options import load_options, plan_from_command, worker_spec_from_options
from inflight.commands.option_sections import SectionedCommand, section
from inflight.commands.options.usage import usage_errors
from loadtests.analysis.summary import Summary
from loadtests.report.write_reports import PAGE, write_run_report, write_servers_report
from loadtests.run.audit_runner import check_audit, run_audit
from loadtests.run.controller import run_load_test
from loadtests.run.two_servers import AlternatingWindows, complete_windows, plan_against
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
    click.option(
        "--audit",
        is_flag=True,
        help="Also check for cached and cut answers, as MLPerf's compliance tests do: sends the load again with one "
        "prompt, and looks at 32 answers.",
    ),
)
@section(
    "Comparison of two servers",
    click.option(
        "--against",
        metavar="ADDRESS[,model=NAME][,metrics=URL]",
        help="Send the same load to this server too, in windows that alternate, and compare both. It gets no --header.",
    ),
    click.option(
        "--windows",
        type=click.IntRange(1),
        default=4,
        show_default=True,
        help="With --against: number of windows of each server; each is as long as a run.",
    ),
)
def command(out: Path | None, as_json: bool, audit: bool, against: str | None, windows: int, **options: Any) -> None:
    """Run a load test: print the figures and write a report as one HTML file.

    Latency is measured from the time a request was due, so a slow server cannot hide by slowing down the load. Ctrl-C
    ends a run early and reports what was measured, with exit code 130. Exit code 1 if an SLO was missed, an audit or
    the run failed, no request was completed or all answers were empty. With --against, SLOs and the audit of --server
    count.

    \b
      inflight load run
      inflight load run --rate 4 --seconds 120 --slo 'p99 ttft <= 500ms' --slo 'p99 itl <= 50ms'
      inflight load run --users 1..64/120s --input-tokens lognormal:200,0.6 --output-tokens 128
      inflight load run --trace sample:azure --speed 10 --server http://127.0.0.1:8000
      inflight load run --plan load-20261122-101500/plan.json --workers 2
      inflight load run --rate 4 --against 'openai+http://127.0.0.1:8090/v1?dialect=vllm'
    """  # fmt: skip
    plan, team = plan_from_command(options), worker_spec_from_options(options)
    with usage_errors():
        other = None if against is None else plan_against(plan, against)
        if audit:
            check_audit(plan)
    with RunDirectory.creating(out or Path(f"load-{datetime.now():%Y%m%d-%H%M%S}")) as directory:
        if other is not None:
            test = AlternatingWindows((plan, other), directory.path, windows, team, show_progress)
            _compare(test, as_json, audit)
        with show_progress(plan) as shown:
            interrupted = run_load_test(plan, directory, team, shown)
        if audit and not interrupted:
            interrupted = run_audit(plan, directory, team, show_progress)
        summary, page = write_run_report(directory)
        shown.finish(summary)
    print_results(summary, page, show_summary, as_json)
    if interrupted:
        sys.exit(130)
    sys.exit(exit_code(summary))


def _compare(test: AlternatingWindows, as_json: bool, audit: bool) -> NoReturn:
    """Run a test of two servers and exit: with 1 if a server answered nothing in a window, or the first one missed an
    SLO or failed its audit, which the second one may."""
    pairs, interrupted = test.run()
    if audit and not interrupted:
        pairs[0], interrupted = test.audit()
    comparison = write_servers_report(complete_windows(test.directory), test.directory)
    print_results(comparison, test.directory / PAGE, print_comparison, as_json)
    failed = any(exit_code(first) or exit_code(replace(second, slo=(), audit=())) for first, second in pairs)
    sys.exit(130 if interrupted else int(failed))


def exit_code(summary: Summary) -> int:
    """Return 1 if an SLO was missed or an audit failed, or if no request was due, or completed with more than an empty
    answer, although not all clients disconnected; else 0."""
    requests = summary.requests
    nothing_done = not requests.answered and (requests.not_cancelled or not requests.due)
    failed = any(not bound.met for bound in summary.slo) or any(check.passed is False for check in summary.audit)
    return 1 if nothing_done or failed else 0
