"""`inflight batch`: offline jobs, from the first run to the last retry."""

from __future__ import annotations

import click

from inflight.lazy_group import LazyGroup

COMMANDS = {
    "run": ("inflight.commands.batch_run", "Ask a model about every row of an input."),
    "status": ("inflight.commands.batch_status", "Say how a job stands, from another terminal."),
    "resume": ("inflight.commands.batch_resume", "Go on with a job that stopped, or was killed."),
    "retry": ("inflight.commands.batch_retry", "Ask rows once more that failed."),
    "verify": ("inflight.commands.batch_verify", "Prove that every row has exactly one record."),
    "cancel": ("inflight.commands.batch_cancel", "End a running job; what it has done stays."),
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
