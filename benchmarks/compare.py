"""Compares two results of the benchmarks: which figures changed beyond noise.

OLD and NEW are files RESULTS.json, or directories with one, or directories with the files of single benchmarks, such as
copies of .cache/bench. A change is beyond noise if the two-sided Mann-Whitney U test of the repeats says so. If even
repeats without any overlap could not, there are too few of them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from scipy.stats import mannwhitneyu

from benchmarks.figures import Figure, show, wide_console
from benchmarks.results import BENCHMARKS, RESULTS, Results, file_name, read_report

ALPHA = 0.01
"""Low, because a comparison has dozens of figures; five repeats on each side are enough for it."""


@dataclass(frozen=True)
class Change:
    """A figure of both results: medians, their relative difference (None from 0), and the test's p-value."""

    benchmark: str
    name: str
    old: float
    new: float
    relative: float | None
    p: float
    verdict: str
    """`better`, `worse`, `changed` if no goal says which is better, `within noise` or `too few repeats`."""


@dataclass(frozen=True)
class Comparison:
    """The changes, the figures of only one side, and sentences on what else differs."""

    changes: Sequence[Change]
    only_old: Sequence[str]
    only_new: Sequence[str]
    notes: Sequence[str]


@click.command(help=__doc__)
@click.argument("old", type=click.Path(exists=True, path_type=Path))
@click.argument("new", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=ALPHA,
    show_default=True,
    help="Probability of calling noise a change, for each figure.",
)
@click.option("--fail-on-regression", is_flag=True, help="Exit with 1 if a figure is worse.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def main(old: Path, new: Path, alpha: float, fail_on_regression: bool, as_json: bool) -> None:
    comparison = compare(_read(old), _read(new), alpha)
    if as_json:
        click.echo(json.dumps(asdict(comparison), indent=2))
    else:
        _show(comparison)
    sys.exit(fail_on_regression and any(change.verdict == "worse" for change in comparison.changes))


def compare(old: Results, new: Results, alpha: float = ALPHA) -> Comparison:
    """Compare the figures that have the same name and benchmark."""
    before, after = ({(name, figure.name): figure for name, figure in side.rows()} for side in (old, new))
    notes = [
        f"{what}: {left.get(what, 'unknown')} and {right.get(what, 'unknown')}"
        for left, right in ((old.machine, new.machine), (old.versions, new.versions))
        if left and right
        for what in dict.fromkeys((*left, *right))
        if left.get(what) != right.get(what)
    ]
    return Comparison(
        [_change(key[0], before[key], after[key], alpha) for key in before if key in after],
        [": ".join(key) for key in before if key not in after],
        [": ".join(key) for key in after if key not in before],
        notes,
    )


def _change(benchmark: str, old: Figure, new: Figure, alpha: float) -> Change:
    difference = new.median - old.median
    p = float(mannwhitneyu(old.values, new.values, method="exact").pvalue)
    p = 1.0 if math.isnan(p) else p  # all values are equal
    # The exact test's smallest p-value: one of the two orders without overlap, of all orders.
    least = 2 / math.comb(len(old.values) + len(new.values), len(old.values))
    if least > alpha:
        verdict = "too few repeats"
    elif p > alpha or not difference:
        verdict = "within noise"
    elif direction := new.direction:
        verdict = "better" if difference * direction > 0 else "worse"
    else:
        verdict = "changed"
    relative = difference / abs(old.median) if old.median else None
    return Change(benchmark, old.name, old.median, new.median, relative, p, verdict)


def _read(path: Path) -> Results:
    """Read results as the command's help says. Raises UsageError."""
    file = path / RESULTS.name if path.is_dir() else path
    try:
        if file.exists():
            return Results.from_json(json.loads(file.read_text()))
        files = {name: path / file_name(name) for name in BENCHMARKS}
        figures = {name: read_report(report)[0] for name, report in files.items() if report.exists()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise click.UsageError(f"{path} can't be read as results ({error}); name a RESULTS.json.") from error
    if not figures:
        raise click.UsageError(f"{path} holds no results; name a directory with RESULTS.json.")
    return Results("", {}, {}, figures, {})


def _show(result: Comparison) -> None:
    console = wide_console()
    table = Table("benchmark", "figure", "old", "new", "change", "p", "")
    styles = {"better": "green", "worse": "red", "changed": "yellow"}
    for one in result.changes:
        change = "" if one.relative is None else f"{one.relative:+.1%}"
        cells: Sequence[Any] = (one.benchmark, one.name, show(one.old), show(one.new), change, f"{one.p:.3f}")
        table.add_row(*cells, one.verdict, style=styles.get(one.verdict))
    console.print(table)
    for title, lines in (
        ("Different", result.notes),
        ("Only old", result.only_old),
        ("Only new", result.only_new),
    ):
        for line in lines:
            console.print(f"{title}: {line}", markup=False)


if __name__ == "__main__":
    main()
