"""`inflight load`: load tests, from one run to a comparison of two."""

from __future__ import annotations

import click

from inflight.lazy_group import LazyGroup

COMMANDS = {
    "run": ("inflight.commands.load_run", "Put load on a server, and report what came of it."),
    "sweep": ("inflight.commands.load_sweep", "Find the highest rate at which a promise holds."),
    "compare": ("inflight.commands.load_compare", "Say whether a change is real, and fail on a regression."),
    "report": ("inflight.commands.load_report", "Make the report of a run anew."),
    "worker": ("inflight.commands.load_worker", "Send requests for a run of another machine."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def command() -> None:
    """Load tests that tell the truth: how many users does a server carry within a promise, and what does it cost?

    \b
      inflight load run --rate 4 --seconds 60
      inflight load sweep --promise 'p99 ttft <= 500ms'
      inflight load compare before/ --with after/
    """
