"""`inflight load compare`: test whether a change is significant, and whether it is a regression."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtests.analysis.comparison.compare import Comparison, compare
from loadtests.report.comparison import changes_table
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
        click.echo(json.dumps(asdict(comparison)))
    else:
        _print_comparison(comparison, Console())
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


def _print_comparison(comparison: Comparison, console: Console) -> None:
    for warning in comparison.warnings:
        console.print(Text(f"Warning: {warning}", style="yellow"))
    report = changes_table(comparison)
    table = Table("", box=None, pad_edge=False)
    for name in report.head[1:5]:
        table.add_column(name, justify="right")
    table.add_column("")
    for change, (metric, before, after, *interval, _, verdict) in zip(comparison.changes, report.cells, strict=True):
        colours = {"better": "green", "worse": "yellow"}
        style = "bold red" if change.regression else colours.get(change.verdict.value, "")
        word = verdict.text.upper() if change.regression else verdict.text
        table.add_row(*(cell.text for cell in (metric, before, after, *interval)), Text(word, style=style))
    console.print(table)
    if comparison.plans_differ:
        return
    many = len(comparison.regressions)
    if comparison.inconclusive:
        console.print(
            "INCONCLUSIVE: there are too few requests to judge most figures; run both longer, or several times, or pass"
            " --allow-inconclusive."
        )
        return
    words = f"worse by more than {comparison.threshold:.0%} with confidence"
    console.print(f"{many} figure{'s' if many != 1 else ''} {words}" if many else f"No figure is {words}.")
