"""`inflight load`: run load tests and compare them."""

from __future__ import annotations

import click

from inflight.lazy_group import LazyGroup

COMMANDS = {
    "run": ("inflight.commands.load.run", "Run a load test and write a report."),
    "sweep": ("inflight.commands.load.sweep", "Find the highest rate at which an SLO is met."),
    "compare": ("inflight.commands.load.compare", "Test whether a change is significant; fail on a regression."),
    "report": ("inflight.commands.load.report", "Write the report of a run again."),
    "worker": ("inflight.commands.load.worker", "Send requests for a run on another machine."),
}


@click.group(cls=LazyGroup, commands=COMMANDS)
def command() -> None:
    """Run load tests: find how many users a server can handle within an SLO, and at what cost.

    \b
      inflight load run --rate 4 --seconds 60
      inflight load sweep --slo 'p99 ttft <= 500ms'
      inflight load compare before/ --with after/
    """
