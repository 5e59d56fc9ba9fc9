"""`inflight load`: load tests, from one run to a comparison of two."""

from __future__ import annotations

import click

from inflight.lazy_group import LazyGroup

COMMANDS = {
    "run": ("inflight.commands.load.run", "Put load on a server, and report what came of it."),
    "sweep": ("inflight.commands.load.sweep", "Find the highest rate at which an SLO is met."),
    "compare": ("inflight.commands.load.compare", "Say whether a change is real, and fail on a regression."),
    "report": ("inflight.commands.load.report", "Make the report of a run anew."),
    "worker": ("inflight.commands.load.worker", "Send requests for a run of another machine."),
}


@click.group(cls=LazyGroup, commands=COMMANDS)
def command() -> None:
    """Load tests that tell the truth: how many users does a server carry within an SLO, and what does it cost?

    \b
      inflight load run --rate 4 --seconds 60
      inflight load sweep --slo 'p99 ttft <= 500ms'
      inflight load compare before/ --with after/
    """
