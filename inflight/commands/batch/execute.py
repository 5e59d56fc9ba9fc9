"""Run a job as `run`, `resume` and `retry` do: show its progress and exit with its code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inflight.batch.job.directory import JobDirectory
from inflight.batch.job.spec import Job
from inflight.batch.reporting.display import job_display, print_line
from inflight.batch.reporting.metrics import metrics_publisher
from inflight.batch.reporting.progress import JobProgress, JobState
from inflight.batch.reporting.status import resume_command
from inflight.commands.option_sections import section
from inflight.commands.options.quiet import quiet_option
from inflight.commands.terminal.standard_streams import ignore_closed_output

if TYPE_CHECKING:
    from inflight.batch.runner import JobResult, JobRunner


result_options = section(
    "Reports",
    click.option(
        "--allow-failed",
        metavar="N|P%",
        help="Exit with 0 if at most this number or percentage of rows failed.  [default: 0]",
    ),
    click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics; 0: any free port."),
    click.option("--metrics-file", type=click.Path(path_type=Path), help="Write metrics to a file for node_exporter."),
    quiet_option,
    click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
)
"""Adds the options for the display and for the failures that are allowed; `execute_job` takes them."""


def execute_job(
    job: Job, directory: JobDirectory, options: dict[str, Any], retry_codes: Sequence[str] | None = None
) -> None:
    """Run the job once and exit with its exit code. Raises BatchError if the job cannot start.

    Closing the terminal, or the reader of the job's output, affects neither the job nor its exit code.
    """
    with ignore_closed_output():
        end, code = run_job(job, directory, options, retry_codes)
        if options["as_json"]:
            click.echo(json.dumps(result_values(end, directory, code)))
        elif end.state is JobState.FINISHED:
            if code or not options["quiet"]:
                click.echo(_summary(directory))
        else:
            click.echo("\n".join(end_messages(end, directory)), err=True)
    sys.exit(code)


def run_job(
    job: Job, directory: JobDirectory, options: dict[str, Any], retry_codes: Sequence[str] | None = None
) -> tuple[JobResult, int]:
    """Run the job once and show its progress; return its result and its exit code. Raises BatchError if it cannot
    start."""
    allowed = _failure_allowance(options["allow_failed"])
    name = directory.path.stem
    with (
        metrics_publisher(name, options["metrics_port"], options["metrics_file"], print_line) as publish,
        job_display(name, quiet=options["quiet"]) as screen,
    ):

        def on_progress(progress: JobProgress) -> None:
            publish(progress)
            screen.on_progress(progress)

        end = _runner_class(job)(job, directory, on_progress, screen.on_message).run(retry_codes)
    return end, exit_code(end, allowed)


def end_messages(end: JobResult, directory: JobDirectory) -> Iterator[str]:
    """Yield why the job ended before it was finished, and how to resume it."""
    state = "Error" if end.state is JobState.FAILED else str(end.state).capitalize()
    yield f"{state}: {end.message}" + (f" [{end.code}]" if end.code else "")
    if (directory.path / "job.json").is_file():
        option = _CORRECTED_BY.get(end.code) if end.state is JobState.FAILED else None
        yield f"{'Resume' if option is None else 'Correct it'} with: {resume_command(directory)}{option or ''}"


_CORRECTED_BY = {
    "model_not_found": " --model NAME",
    "unsupported_deployment": " --server ADDRESS",
    "permission_denied": " --header 'Authorization: Bearer KEY'",
}
"""Options for mistakes with which the same command fails again."""


def _summary(directory: JobDirectory) -> str:
    """Return the summary that the job wrote, or one line if the file was removed."""
    try:
        return directory.summary.read_text(encoding="utf-8").rstrip()
    except OSError:
        return f"The job at {directory.path} is finished."


def _runner_class(job: Job) -> type[JobRunner]:
    """Return the runner for the job. Imported late: the import is slow, and the display is already up by then."""
    if job.run_options.runner == "local":
        from inflight.batch.runner import JobRunner

        return JobRunner
    from inflight.batch.ray.runner import RayRunner

    return RayRunner


def exit_code(end: JobResult, allowed: Callable[[int], float]) -> int:
    """Return the result's exit code, or 0 if no more rows failed than are allowed."""
    failed = end.counts.error + end.counts.dead
    if (
        end.state is JobState.FINISHED
        and failed <= allowed(end.counts.done)
        and end.counts.empty < max(1, end.counts.ok)
    ):
        return 0
    return end.exit_code


def result_values(end: JobResult, directory: JobDirectory, code: int) -> dict[str, Any]:
    return {
        "state": end.state,
        "exit_code": code,
        "message": end.message,
        "code": end.code,
        "job": str(directory.path),
        "outputs": end.outputs,
        **end.counts.as_dict(),
    }


def _failure_allowance(allowance: str | None) -> Callable[[int], float]:
    """Return a function that computes how many of a number of rows may fail."""
    text = (allowance or "0").strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e18:
        raise click.BadParameter(
            f"{allowance!r} is neither a number of rows nor a percentage; give 10 or 1%, for example.",
            param_hint="'--allow-failed'",
        )
    return (lambda rows: rows * number / 100) if text.endswith("%") else (lambda rows: number)
