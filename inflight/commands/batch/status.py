"""`inflight batch status`: how a job stands, from another terminal."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from inflight.batch.job.directory import JobDirectory
from inflight.batch.reporting.status import JobStatus, find_jobs, job_status
from inflight.commands.batch.status_display import print_status, print_status_line
from inflight.commands.options.seconds import Seconds


@click.command(short_help="Show the status of a job.")
@click.argument("path", required=False)
@click.option(
    "--watch", type=Seconds(exclusive=True), metavar="SECONDS", help="Refresh at this interval until no job runs."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per job, one per line.")
def command(path: str | None, watch: float | None, as_json: bool) -> None:
    """Show the status of the job at PATH; without PATH, of all jobs in this folder.

    PATH is the job's directory, or its output's path or address. A job whose process was killed is shown as such, with
    the command that resumes it. Exit code 0 whatever its state; 1 where there is no job.

    \b
      inflight batch status
      inflight batch status answers.jsonl --watch 2
      inflight batch status answers.jsonl --json | jq -r .state
    """  # fmt: skip
    jobs = find_jobs(Path()) if path is None else [JobDirectory.find(path)]
    running = _print_all(jobs, path is None, as_json, watch is not None)
    try:
        while running and watch is not None:
            time.sleep(watch)
            running = _print_all(jobs, path is None, as_json, True)
    except KeyboardInterrupt:
        pass  # the way to end it


def _print_all(jobs: list[JobDirectory], short: bool, as_json: bool, again: bool) -> bool:
    """Say how they stand; whether any runs."""
    found = [job_status(job) for job in jobs]
    if again and not as_json:
        click.clear()  # only where there is a terminal
    for one in found:
        _print_one(one, short, as_json)
    return any(one.running for one in found)


def _print_one(one: JobStatus, short: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(one.as_dict()))
    elif short:
        print_status_line(one)
    else:
        print_status(one)
