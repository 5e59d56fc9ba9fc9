"""`inflight evaluate`: evaluations over golden sets, and comparisons between two."""

from __future__ import annotations

import click

from inflight.lazy_group import LazyGroup

COMMANDS = {
    "run": ("inflight.commands.evaluate.run", "Score a model's answers to a golden set."),
    "gate": ("inflight.commands.evaluate.gate", "Evaluate an engine as a baseline was, and fail on a regression."),
    "precisions": ("inflight.commands.evaluate.precisions", "Compare engines of a checkpoint at several precisions."),
    "compare": ("inflight.commands.evaluate.compare", "Compare two evaluations row by row; fail on a regression."),
}


@click.group(cls=LazyGroup, commands=COMMANDS)
def command() -> None:
    """Evaluate a model over a golden set, and find whether another one is better, equivalent or worse.

    \b
      inflight evaluate run golden.jsonl --reference answer --metric bleu,chrf,exact --out before/
      inflight evaluate run golden.jsonl --reference answer --metric bleu,chrf,exact --out after/ --server gpu2:8001
      inflight evaluate compare before/ after/ --margin 2
    """
