"""`inflight batch`: offline jobs, from the first run to the last retry."""

from __future__ import annotations

import click

from inflight.lazy_group import LazyGroup

COMMANDS = {
    "run": ("inflight.commands.batch_run", "Send every row of an input to a model."),
    "status": ("inflight.commands.batch_status", "Show the status of a job."),
    "resume": ("inflight.commands.batch_resume", "Resume a job that stopped or was killed."),
    "retry": ("inflight.commands.batch_retry", "Send failed rows again."),
    "verify": ("inflight.commands.batch_verify", "Check that every row has exactly one record."),
    "cancel": ("inflight.commands.batch_cancel", "Stop a running job; finished rows are kept."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def command() -> None:
    """Offline batch jobs: a million rows overnight, on machines that may be taken away at any moment.

    \b
      inflight batch run prompts.jsonl --out answers.jsonl
      inflight batch status answers.jsonl
      inflight batch resume answers.jsonl
      inflight batch retry answers.jsonl --only prompt_too_long
      inflight batch verify answers.jsonl
    """
