"""`inflight evaluate compare`: compare two evaluations row by row."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from inflight_client import InflightError

from inflight.batch.errors import BatchError
from inflight.evaluate.evaluation import EvaluationDirectory

margin_option = click.option(
    "--margin",
    type=click.FloatRange(0, min_open=True),
    default=2.0,
    show_default=True,
    help="Largest change that is no change, in points: of 100, or percent of a perplexity.",
)


@click.command(short_help="Compare two evaluations row by row; fail on a regression.")
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@margin_option
@click.option("--markdown", type=click.Path(path_type=Path), help="Also write the comparison as Markdown.")
@click.option("--junit", type=click.Path(path_type=Path), help="Also write it as JUnit XML, for CI servers.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as one JSON object.")
def command(before: Path, after: Path, margin: float, markdown: Path | None, junit: Path | None, as_json: bool) -> None:
    """Compare the evaluations BEFORE and AFTER, which must be of the same rows in the same order.

    A metric is equivalent if its change is smaller than --margin with 95% confidence, worse or better if it changed
    significantly, and otherwise these rows can't tell. What loss they can show is in the table.

    Exit codes: 0 better or equivalent; 1 worse; 75 cannot tell; 2 the evaluations can't be compared.

    \b
      inflight evaluate compare baseline/ candidate/
      inflight evaluate compare baseline/ candidate/ --margin 1 --junit verdict.xml --markdown verdict.md
    """
    from inflight.evaluate.compare import compare
    from inflight.evaluate.report import as_junit, as_markdown

    try:
        found = compare(EvaluationDirectory(before), EvaluationDirectory(after), margin)
    except (BatchError, InflightError) as error:
        click.echo(f"Error: {error} [{error.code}]", err=True)
        sys.exit(2)
    for path, text in ((markdown, as_markdown), (junit, as_junit)):
        if path is not None:
            try:
                path.write_text(text(found), encoding="utf-8")
            except OSError as error:
                raise click.BadParameter(f"{path}: {error.strerror or error}") from None
    click.echo(json.dumps(found.as_json()) if as_json else as_markdown(found))
    sys.exit(found.exit_code)
