"""`inflight evaluate run`: score a model's answers to a golden set."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from inflight_client import InflightError

from inflight.batch.job.directory import JobDirectory
from inflight.batch.reporting.progress import JobState
from inflight.commands.batch.execute import end_messages, result_options, result_values, run_job
from inflight.commands.batch.options import (
    GENERATE_ONLY,
    evaluated_job,
    evaluated_job_options,
    running_options,
)
from inflight.commands.option_sections import SectionedCommand, section
from inflight.commands.terminal.standard_streams import ignore_closed_output
from inflight.evaluate.evaluation import Evaluation, EvaluationDirectory

if TYPE_CHECKING:
    from inflight.batch.runner import JobResult
    from inflight.evaluate.metrics import Metric
    from inflight.evaluate.run import Scoring


evaluation_options = section(
    "Evaluation",
    click.option("--reference", metavar="COLUMN", help="Column with a row's right answer, or with a list of them."),
    click.option(
        "--metric",
        "names",
        multiple=True,
        metavar="LIST",
        help="Metrics, with commas between them (repeatable): bleu, chrf, rouge1, rouge2, rougeL, exact, f1, wer, cer,"
        " json-valid, regex or regex:PATTERN; or perplexity; or choice-accuracy, choice-accuracy-norm.",
    ),
    click.option("--choices", metavar="COLUMN", help="Column with the list of a row's choices, for choice-accuracy."),
)
"""Adds the options that say what is measured; `scorings_from` reads them."""


@click.command(cls=SectionedCommand, short_help="Score a model's answers to a golden set.")
@click.argument("golden", metavar="GOLDEN")
@section(
    "Evaluation",
    click.option("--out", required=True, type=click.Path(path_type=Path), help="Directory of the evaluation."),
)
@evaluation_options
@evaluated_job_options
@running_options
@result_options
def command(golden: str, out: Path, **options: Any) -> None:
    """Send every row of GOLDEN to a model as a batch job, and score its answers.

    GOLDEN is what `inflight batch run` reads: JSON lines (of OpenAI's Batch format too), CSV, Parquet, or a table. The
    column of --reference has the right answers.

    --out holds the job, scores.jsonl with a line for each row, and evaluation.json with the value and the 95% interval
    of each metric. The command may be killed at any moment: run it again to continue.

    Exit codes: 0 all rows answered and scored; 3 scored, but some rows failed; 4 cancelled; 75 stopped early, run it
    again; 1 the evaluation cannot continue; 2 wrong usage.

    \b
      inflight evaluate run golden.jsonl --reference answer --metric bleu,chrf,rougeL --out baseline/
      inflight evaluate run golden.csv --template '{{ question }}' --reference answer --metric exact,f1 --out a/
      inflight evaluate run texts.jsonl --prompt text --metric perplexity --out p/
      inflight evaluate run quiz.jsonl --choices options --reference right --metric choice-accuracy --out c/
      inflight evaluate run golden.jsonl --metric json-valid --metric 'regex:^\\{' --out a/ --ephemeral my-engine
    """  # fmt: skip
    from inflight.evaluate.metrics import load_metrics

    directory = EvaluationDirectory(out)
    (scoring,) = scorings_from(golden, directory, options, load_metrics)
    job_directory = JobDirectory.from_output(scoring.job.output)
    with ignore_closed_output():
        end, code, evaluation = _evaluate(scoring, options)
        if options["as_json"]:
            values = {} if evaluation is None else {"evaluation": evaluation.model_dump(mode="json")}
            click.echo(json.dumps(result_values(end, job_directory, code) | values))
        elif evaluation is not None:
            click.echo(summary(evaluation, directory))
    sys.exit(code)


def scorings_from(
    golden: str,
    directory: EvaluationDirectory,
    options: dict[str, Any],
    load: Callable[[Sequence[str]], Sequence[Metric]],
) -> list[Scoring]:
    """Return an evaluation for each task of the metrics. If there are several, sampling is that of the one that
    generates."""
    from inflight.evaluate.metrics import CHOICE_METRICS
    from inflight.evaluate.run import Scoring

    reference, choices = options["reference"], options["choices"]
    if not options["names"]:
        raise click.UsageError("give --metric, such as --metric exact,f1")
    try:
        metrics = load(options["names"])
    except InflightError as error:
        raise click.UsageError(f"--metric: {error}") from None
    if (choices is None) is any(metric.name in CHOICE_METRICS for metric in metrics):
        raise click.UsageError(f"{CHOICE_METRICS[0]} and --choices COLUMN need each other; give both, or neither")
    tasks = dict.fromkeys(metric.task for metric in metrics)
    scorings = []
    for task in tasks:
        left_out = dict.fromkeys(GENERATE_ONLY) if task != "generate" and len(tasks) > 1 else {}
        asked = {name: value for name, value in options.items() if name not in _OWN}
        job = evaluated_job(golden, directory.answers, task, asked | left_out, choices or reference)
        of_task = [metric for metric in metrics if metric.task == task]
        scorings.append(Scoring(directory, job, of_task, reference, choices if task == "score" else None))
    return scorings


_OWN = ("names", "reference", "choices")


def _evaluate(scoring: Scoring, options: dict[str, Any]) -> tuple[JobResult, int, Evaluation | None]:
    """Run the job of an evaluation and score it; return how it ended, its exit code, and the evaluation if the job is
    finished. Raises BatchError."""
    scoring.begin()
    directory = JobDirectory.from_output(scoring.job.output)
    end, code = run_job(scoring.job, directory, options)
    if end.state is JobState.FINISHED:
        return end, code, scoring.score()
    if not options.get("as_json"):
        click.echo("\n".join(end_messages(end, directory)), err=True)
    return end, code, None


def finished_evaluation(scoring: Scoring, options: dict[str, Any]) -> Evaluation:
    """Run an evaluation and return it; exit with the job's exit code if that ends early. Raises BatchError."""
    with ignore_closed_output():
        _, code, evaluation = _evaluate(scoring, options)
    return evaluation or sys.exit(code)


def summary(evaluation: Evaluation, directory: EvaluationDirectory) -> str:
    """Return the values of the metrics as a table, and what is where."""
    width = max(len(metric.name) for metric in evaluation.metrics)
    lines = [f"{evaluation.scored:,} of {evaluation.golden.rows:,} rows of {evaluation.golden.address} scored."]
    for metric in evaluation.metrics:
        value = "none" if metric.value is None else f"{metric.value:.4f}  95%: {metric.low:.4f} to {metric.high:.4f}"
        lines.append(f"  {metric.name:<{width}}  {value}")
    lines += [f"  {count:,} rows without an answer: {code}" for code, count in evaluation.codes.items()]
    return "\n".join([*lines, f"Scores: {directory.scores}"])
