"""`inflight batch resume`: go on with a job that stopped, or was killed."""

from __future__ import annotations

from typing import Any

import click

from inflight.batch.job_directory import JobDirectory
from inflight.commands.batch_life import end_options, live
from inflight.commands.batch_options import asked_running, running_options


@click.command(short_help="Resume a job that stopped or was killed.")
@click.argument("path")
@running_options
@end_options
def command(path: str, **asked: Any) -> None:
    """Resume the job at PATH: its directory, or its output's path or address.

    Input, prompts, sampling and model stay as they were; the options below may be changed. Exit codes are those of
    `inflight batch run`.

    \b
      inflight batch resume answers.jsonl
      inflight batch resume answers.job --server gpu3:8001 --notice 100
    """
    directory = JobDirectory.find(path)
    job = directory.job()
    live(job.model_copy(update={"running": asked_running(asked, job.running)}), directory, asked)
