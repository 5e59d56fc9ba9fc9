"""`inflight batch verify`: check that every row has exactly one record."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from inflight.batch.job.directory import JobDirectory
from inflight.batch.verify.checker import verify


@click.command(short_help="Check that every row has exactly one record.")
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(path: str, as_json: bool) -> None:
    """Read the input and output of the job at PATH again and compare them.

    PATH is the job's directory, or its output's path or address.

    Every row of the input must have exactly one record: an answer, an error or a dead letter. The output must contain
    every answer. The check uses nothing of the job's state except its original input and whether it is finished.
    Exit codes: 0 if everything agrees; 1 if it does not or the job is not finished.

    \b
      inflight batch verify answers.jsonl
      inflight batch verify answers.job --json | jq .agrees
    """  # fmt: skip
    verdict = verify(JobDirectory.find(path))
    if as_json:
        click.echo(json.dumps({"complete": verdict.complete, "consistent": verdict.consistent, **asdict(verdict)}))
    else:
        for sentence in verdict.messages():
            click.echo(sentence)
    sys.exit(0 if verdict.complete else 1)
