"""`inflight batch`: run, watch and repair offline jobs."""

from __future__ import annotations

import click

from inflight.lazy_group import LazyGroup

COMMANDS = {
    "run": ("inflight.commands.batch.run", "Send every row of an input to a model."),
    "status": ("inflight.commands.batch.status", "Show the status of a job."),
    "resume": ("inflight.commands.batch.resume", "Resume a job that stopped or was killed."),
    "retry": ("inflight.commands.batch.retry", "Send failed rows again."),
    "verify": ("inflight.commands.batch.verify", "Check that every row has exactly one record."),
    "cancel": ("inflight.commands.batch.cancel", "Stop a running job; finished rows are kept."),
}


@click.group(cls=LazyGroup, commands=COMMANDS)
def command() -> None:
    """Run offline batch jobs: millions of rows, on machines that may be preempted at any moment.

    \b
      inflight batch run prompts.jsonl --out answers.jsonl
      inflight batch status answers.jsonl
      inflight batch resume answers.jsonl
      inflight batch retry answers.jsonl --only prompt_too_long
      inflight batch verify answers.jsonl
    """
