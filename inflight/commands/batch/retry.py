"""`inflight batch retry`: send failed rows of a finished job again."""

from __future__ import annotations

from typing import Any

import click

from inflight.batch.job.directory import JobDirectory
from inflight.commands.batch.execute import execute_job, result_options
from inflight.commands.batch.options import run_options_from, running_options


@click.command(short_help="Send failed rows again.")
@click.argument("path")
@click.option("--only", multiple=True, metavar="CODE", help="Only rows that failed with this code (repeatable).")
@running_options
@result_options
def command(path: str, only: tuple[str, ...], **options: Any) -> None:
    """Send failed rows of the finished job at PATH again, and replace their old records.

    PATH is the job's directory, or its output's path or address. Without --only these are the rows that were refused,
    that gave up after retries, or that crashed engines; with --only also rows that were never sent. `inflight batch
    status` counts rows by code. If it is killed, continue with `inflight batch resume`.

    \b
      inflight batch retry answers.jsonl
      inflight batch retry answers.jsonl --only deadline_exceeded --row-timeout 3600
      inflight batch retry answers.jsonl --only row_crashed_engine --max-engine-crashes 1
    """
    directory = JobDirectory.find(path)
    job = directory.job()
    execute_job(
        job.model_copy(update={"run_options": run_options_from(options, job.run_options)}),
        directory,
        options,
        retry_codes=only,
    )
