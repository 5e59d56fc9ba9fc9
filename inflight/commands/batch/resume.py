"""`inflight batch resume`: continue a job that stopped or was killed."""

from __future__ import annotations

from typing import Any

import click

from inflight.batch.job.directory import JobDirectory
from inflight.commands.batch.execute import execute_job, result_options
from inflight.commands.batch.options import run_options_from, running_options


@click.command(short_help="Resume a job that stopped or was killed.")
@click.argument("path")
@running_options
@result_options
def command(path: str, **options: Any) -> None:
    """Resume the job at PATH: its directory, or its output's path or address.

    Input, prompts, sampling and model stay the same; the options below may change. Exit codes are those of
    `inflight batch run`.

    \b
      inflight batch resume answers.jsonl
      inflight batch resume answers.job --server gpu3:8001 --drain-seconds 100
    """
    directory = JobDirectory.find(path)
    job = directory.job()
    execute_job(job.model_copy(update={"run_options": run_options_from(options, job.run_options)}), directory, options)
