"""`inflight evaluate precisions`: what a checkpoint gains and loses at lower precisions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from build_engines.manifest import Precision
from inflight.commands.batch.execute import result_options
from inflight.commands.batch.options import evaluated_job_options, running_options
from inflight.commands.evaluate.compare import margin_option
from inflight.commands.evaluate.run import evaluation_options, finished_evaluation, scorings_from
from inflight.commands.option_sections import SectionedCommand, section
from inflight.commands.options.numbers import Seconds
from inflight.commands.options.usage import usage_errors
from inflight.commands.terminal.build_progress import show_build_progress
from inflight.common.atomic_files import write_atomic
from inflight.evaluate.evaluation import EvaluationDirectory


@click.command(cls=SectionedCommand, short_help="Compare engines of a checkpoint at several precisions.")
@click.argument("checkpoint")
@section(
    "Precisions",
    click.option("--out", required=True, type=click.Path(path_type=Path), help="Directory of engines and results."),
    click.option(
        "--precision",
        "precisions",
        default="bf16,int8,int4",
        show_default=True,
        metavar="LIST",
        help="Precisions with commas between them; the first one is what the others are compared with.",
    ),
    click.option(
        "--users", type=click.IntRange(1), default=8, show_default=True, help="Requests in flight for tokens/s."
    ),
    click.option(
        "--seconds", type=Seconds(1), default=10.0, show_default=True, help="Length of each measurement of tokens/s."
    ),
    click.option("--golden", metavar="INPUT", help="Golden set.  [default: size and speed only]"),
    margin_option,
)
@evaluation_options
@evaluated_job_options
@running_options
@result_options
def command(
    checkpoint: str,
    out: Path,
    precisions: str,
    users: int,
    seconds: float,
    golden: str | None,
    margin: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Build an engine of CHECKPOINT for each precision, and show its size, its speed and its metrics as a table.

    Speed is that of the engine alone. Metrics are those of `inflight evaluate run`, also perplexity beside others: it
    is that of the references. Their verdicts are those of `inflight evaluate compare` with the first precision.

    The table is in precisions.md and precisions.json in --out, beside the engines. The command may be killed at any
    moment: run it again to continue.

    \b
      inflight evaluate precisions ./my-checkpoint --golden golden.jsonl --reference answer --metric exact,perplexity
          --out precisions/
      inflight evaluate precisions ./my-checkpoint --golden texts.jsonl --prompt text --metric perplexity --out p/
      inflight evaluate precisions ./my-checkpoint --out sizes/
    """  # fmt: skip
    from inflight.evaluate.metrics import parse_metrics
    from inflight.tune.precisions import Precisions, as_table

    if options["server"] or options["ephemeral"]:
        raise click.UsageError("the engines are built and served by this command; leave out --server and --ephemeral")
    names = _precisions(precisions)
    scorings = () if golden is None else scorings_from(golden, EvaluationDirectory(out), options, parse_metrics)
    wanted = Precisions(checkpoint, out, names, scorings, users, seconds, margin)
    with show_build_progress(options["quiet"]) as progress:
        rows = wanted.measure(lambda scoring: finished_evaluation(scoring, options), progress)
    values, table = {"margin": margin, "engines": [asdict(row) for row in rows]}, as_table(rows)
    write_atomic(out / "precisions.json", json.dumps(values, indent=2) + "\n")
    write_atomic(out / "precisions.md", table + "\n")
    click.echo(json.dumps(values) if as_json else table)


def _precisions(text: str) -> list[Precision]:
    """Return the names in a list. Raises UsageError."""
    from build_engines.target import BuildOptions, check_precisions

    unchecked: Iterable[Any] = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
    names: list[Precision] = []
    for name in unchecked:
        with usage_errors("--precision"):
            check_precisions(BuildOptions("openvino", name))
        names.append(name)
    if not names:
        raise click.UsageError("--precision names no precision; give some, such as bf16,int8,int4")
    return names
