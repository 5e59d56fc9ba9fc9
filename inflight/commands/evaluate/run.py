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
from inflight.batch.job.spec import Job, RunOptions
from inflight.batch.reporting.progress import JobState
from inflight.commands.batch.execute import end_messages, result_options, result_values, run_job
from inflight.commands.batch.options import (
    GENERATE_ONLY,
    evaluated_job,
    evaluated_job_options,
    running_options,
    text_or_file,
)
from inflight.commands.option_sections import SectionedCommand, section
from inflight.commands.terminal.standard_streams import ignore_closed_output
from inflight.common.schema.cli_options import Lines
from inflight.evaluate.evaluation import Evaluation, EvaluationDirectory

if TYPE_CHECKING:
    from inflight.batch.runner import JobResult
    from inflight.evaluate.judge import Judge
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
        " json-valid, regex or regex:PATTERN, judge; or perplexity; or choice-accuracy,"
        " choice-accuracy-norm.",
    ),
    click.option("--choices", metavar="COLUMN", help="Column with the list of a row's choices, for choice-accuracy."),
    click.option(
        "--judge-server",
        multiple=True,
        type=Lines(),
        metavar="ADDRESS",
        help="Server of the judge, for the metric judge (repeatable); addresses are those of --server.",
    ),
    click.option("--judge-ephemeral", metavar="ENGINE", help="Serve this engine as the judge, in place of a server."),
    click.option("--judge-rubric", metavar="TEMPLATE", help="What the judge is asked; @FILE reads it from a file."),
    click.option(
        "--judge-max-tokens",
        type=click.IntRange(1),
        default=64,
        show_default=True,
        help="Maximum tokens of a verdict, with the judge's reasoning.",
    ),
)
"""Adds the options that say what is measured; `scorings_from` reads them."""


@click.command(cls=SectionedCommand, short_help="Score a model's answers to a golden set.")
@click.argument("golden", metavar="GOLDEN")
@section(
    "Evaluation",
    click.option("--out", required=True, type=click.Path(path_type=Path), help="Directory of the evaluation."),
    click.option(
        "--task",
        type=click.Choice(("generate", "transcribe", "text2text")),
        default="generate",
        show_default=True,
        help="What makes the texts that are compared with references.",
    ),
)
@evaluation_options
@evaluated_job_options
@running_options
@result_options
def command(golden: str, out: Path, **options: Any) -> None:
    """Send every row of GOLDEN to a model as a batch job, and score its answers.

    GOLDEN is what `inflight batch run` reads: JSON lines (of OpenAI's Batch format too), CSV, Parquet, or a table. The
    column of --reference has the right answers.

    --out holds the job, scores.jsonl with a line for each row, evaluation.json with the value and the 95% interval of
    each metric, and report.html with distributions and the worst rows. The command may be killed at any moment: run it
    again to continue.

    Exit codes: 0 all rows answered and scored; 3 scored, but some rows failed; 4 cancelled; 75 stopped early, run it
    again; 1 the evaluation cannot continue; 2 wrong usage.

    \b
      inflight evaluate run golden.jsonl --reference answer --metric bleu,chrf,rougeL --out baseline/
      inflight evaluate run golden.csv --template '{{ question }}' --reference answer --metric exact,f1 --out a/
      inflight evaluate run texts.jsonl --prompt text --metric perplexity --out p/
      inflight evaluate run quiz.jsonl --choices options --reference right --metric choice-accuracy --out c/
      inflight evaluate run golden.jsonl --reference answer --metric judge --judge-server judge:8001 --out j/
      inflight evaluate run calls.jsonl --task transcribe --reference said --metric wer --out w/
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
    """Return an evaluation for each task of the metrics; `generate` stands for the task of the options. If there are
    several, sampling is that of the one that generates."""
    from inflight.evaluate.metrics import CHOICE_METRICS, JUDGE
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
    judge = _judge_from(options, any(metric.name == JUDGE for metric in metrics))
    tasks = dict.fromkeys(metric.task for metric in metrics)
    scorings = []
    for task in tasks:
        left_out = dict.fromkeys(GENERATE_ONLY) if task != "generate" and len(tasks) > 1 else {}
        asked = {name: value for name, value in options.items() if name not in _OWN}
        of_job = options.get("task", task) if task == "generate" else task
        job = evaluated_job(golden, directory.answers, of_job, asked | left_out, choices or reference)
        of_task = [metric for metric in metrics if metric.task == task]
        generates = task == "generate"
        scorings.append(
            Scoring(directory, job, of_task, reference, None if generates else choices, judge if generates else None)
        )
    return scorings


_JUDGE = ("judge_server", "judge_ephemeral", "judge_rubric", "judge_max_tokens")
_OWN = ("names", "reference", "choices", *_JUDGE)


def _judge_from(options: dict[str, Any], judges: bool) -> Judge | None:
    """Return the judge that the options describe. `judges`: whether the metric judge is asked for."""
    from inflight.evaluate.judge import RUBRIC, Judge

    servers, engine, rubric, max_tokens = (options[name] for name in _JUDGE)
    if servers and engine:
        raise click.UsageError("--judge-server and --judge-ephemeral exclude each other; leave out one")
    if judges is not bool(servers or engine):
        raise click.UsageError(
            "the metric judge and --judge-server (or --judge-ephemeral) need each other; give both, or neither"
        )
    if not judges:
        return None
    running = RunOptions(ephemeral=engine) if engine else RunOptions(servers=servers)
    return Judge(running, RUBRIC if rubric is None else text_or_file(rubric, "--judge-rubric"), max_tokens)


def _evaluate(scoring: Scoring, options: dict[str, Any]) -> tuple[JobResult, int, Evaluation | None]:
    """Run the jobs of an evaluation and score it; return how the last one ended, the exit code, and the evaluation if
    all are finished. Raises BatchError."""
    from inflight.evaluate.page import evaluation_page

    scoring.begin()
    end, code = _run_job(scoring.job, options)
    if end.state is JobState.FINISHED and (job := scoring.judge_job()) is not None:
        end, judge_code = _run_job(job, options)
        code = code or judge_code
    if end.state is not JobState.FINISHED:
        return end, code, None
    evaluation = scoring.score()
    scoring.directory.write_report(evaluation_page(scoring.directory))
    return end, code, evaluation


def _run_job(job: Job, options: dict[str, Any]) -> tuple[JobResult, int]:
    directory = JobDirectory.from_output(job.output)
    end, code = run_job(job, directory, options)
    if end.state is not JobState.FINISHED and not options.get("as_json"):
        click.echo("\n".join(end_messages(end, directory)), err=True)
    return end, code


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
    if (judge := evaluation.judge) is not None and judge.agreement is not None:
        lines.append(f"  {judge.pairs:,} pairs judged; the same verdict in both orders: {judge.agreement:.1%}")
    lines += [f"  {count:,} rows without an answer: {code}" for code, count in evaluation.codes.items()]
    if evaluation.cut:
        lines.append(
            f"  {evaluation.cut:,} answers end at their limit of tokens; raise --max-tokens if they should not"
        )
    return "\n".join([*lines, f"Report: {directory.report}"])
