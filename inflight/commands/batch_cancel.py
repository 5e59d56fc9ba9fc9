"""`inflight batch cancel`: end a running job."""

from __future__ import annotations

import time
from pathlib import Path

import click

from inflight.batch.errors import writing
from inflight.batch.job_directory import JobDirectory
from inflight.batch.seen.standing import standing

_LOOK_SECONDS = 0.2


@click.command(short_help="End a running job; what it has done stays.")
@click.argument("path", type=click.Path(path_type=Path))
def command(path: Path) -> None:
    """End the job at PATH (its directory, or its output), and wait until it has ended.

    What is in flight is given up at once; what is done stays, and `inflight batch resume` can go on from there. The
    process that ran it exits with 4. Where nothing runs, that is said, and nothing changes.

    \b
      inflight batch cancel answers.jsonl
    """
    directory = JobDirectory.find(path)
    found = standing(directory)
    if not found.running:
        click.echo(f"Nothing runs the job at {directory.path}: {found.state}.")
        return
    with writing(directory.path):
        directory.cancel.touch()
    click.echo(f"Waiting until the job at {directory.path} has ended.", err=True)
    while found.running:
        time.sleep(_LOOK_SECONDS)
        found = standing(directory)
    click.echo(f"The job at {directory.path} has ended: {found.state}.")
