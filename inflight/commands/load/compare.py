"""`inflight load compare`: test whether a change is significant, and whether it is a regression."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console

from inflight.commands.load.display import print_comparison
from loadtests.analysis.comparison.compare import compare
from loadtests.report.page import comparison_page
from loadtests.run_directory import RunDirectory

_RUN = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command(short_help="Test whether a change is significant; fail on a regression.")
@click.argument("before", nargs=-1, required=True, type=_RUN)
@click.option("--with", "after", multiple=True, required=True, type=_RUN, help="A run after the change (repeatable).")
@click.option(
    "--threshold",
    type=click.FloatRange(0),
    default=0.05,
    show_default=True,
    help="Relative change that counts as a regression.",
)
@click.option("--allow-different-plans", is_flag=True, help="Judge runs with different plans too.")
@click.option("--allow-inconclusive", is_flag=True, help="Exit with 0 also if most figures can't be judged.")
@click.option("--out", type=click.Path(path_type=Path), help="Also write the comparison to an HTML file.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as one JSON object.")
def command(
    before: tuple[Path, ...],
    after: tuple[Path, ...],
    threshold: float,
    allow_different_plans: bool,
    allow_inconclusive: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare runs before and after a change, with a 95% confidence interval for the change of each figure.

    A figure is a regression if its whole interval is worse than the threshold; the exit code is then 1. Runs with
    different plans are shown but not judged, and a comparison with too few requests for most figures is inconclusive;
    the exit code is then 2.

    \b
      inflight load compare before --with after
      inflight load compare before1 before2 before3 --with after1 --with after2 --with after3 --threshold 0.02
      inflight load compare before --with after --json | jq '.changes[] | select(.regression)'
    """  # fmt: skip
    sides = [RunDirectory(run) for run in before], [RunDirectory(run) for run in after]
    comparison = compare(*sides, threshold, allow_different_plans=allow_different_plans)
    if as_json:
        click.echo(json.dumps(comparison.as_json()))
    else:
        print_comparison(comparison, Console())
    if out is not None:
        try:
            out.write_text(comparison_page(comparison), encoding="utf-8")
        except OSError as error:
            raise click.BadParameter(f"{out}: {error.strerror}.", param_hint="'--out'") from error
        click.echo(f"Report: {out}", err=as_json)
    if comparison.plans_differ:
        how = "run both with one plan (--plan before/plan.json), or judge them anyway with --allow-different-plans"
        raise click.UsageError(f"The runs have different plans, so no change was judged: {how}.")
    if comparison.inconclusive and not allow_inconclusive:
        sys.exit(2)
    sys.exit(1 if comparison.regressions else 0)
