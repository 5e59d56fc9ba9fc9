"""`inflight batch cancel`: stop a running job."""

from __future__ import annotations

import time

import click

from inflight.batch.errors import map_disk_errors
from inflight.batch.job.directory import JobDirectory
from inflight.batch.reporting.status import job_status

_LOOK_SECONDS = 0.2


@click.command(short_help="Stop a running job; finished rows are kept.")
@click.argument("path")
def command(path: str) -> None:
    """Stop the job at PATH (its directory, or its output's path or address) and wait until it has ended.

    Requests in flight are cancelled at once; finished rows are kept, and `inflight batch resume` can continue. The
    process that ran the job exits with 4. If the job does not run, nothing changes.

    \b
      inflight batch cancel answers.jsonl
    """
    directory = JobDirectory.find(path)
    status = job_status(directory)
    if not status.running:
        click.echo(f"No process runs the job at {directory.path}: {status.state}.")
        return
    with map_disk_errors(directory.path):
        directory.cancel.touch()
    click.echo(f"Waiting for the job at {directory.path} to end.", err=True)
    while status.running:
        time.sleep(_LOOK_SECONDS)
        status = job_status(directory)
    click.echo(f"The job at {directory.path} has ended: {status.state}.")
