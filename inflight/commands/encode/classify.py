"""`inflight classify`: print the classes of texts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from inflight.commands.encode.texts import (
    Summary,
    counts,
    encoder_options,
    in_blocks,
    json_line,
    read_texts,
    request_arguments,
    shown,
)
from inflight.commands.option_sections import SectionedCommand, section
from inflight.commands.options.connection import open_client


@click.command(cls=SectionedCommand, short_help="Print the classes of texts.")
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@encoder_options("texts")
@section(
    "Output",
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print JSON objects, one per line: index, label, score, scores of all labels, input_tokens and truncated.",
    ),
)
def command(texts: tuple[str, ...], input: Path | None, as_json: bool, retry_timeout: float, **arguments: Any) -> None:
    """Print the best label of each TEXT and its score; - reads texts from standard input, one per line.

    \b
      inflight classify "I love this tea."
      inflight classify --input reviews.txt --json > labels.jsonl
      cut -f 3 reviews.tsv | inflight classify - --truncate
    """  # fmt: skip
    named = read_texts(texts, input, "TEXT")
    summary, asked = Summary(), request_arguments(arguments)
    with open_client(arguments, retry_timeout) as client:
        classify = partial(client.classify, **asked, return_errors=True)
        for index, text, result, place in in_blocks(named, classify, summary):
            best = result[place]
            record = {"index": index, "label": best.label, "score": best.score, "scores": best.scores}
            line = f"{best.label}\t{best.score:.4f}\t{shown(text)}"
            click.echo(json_line({**record, **counts(result, place)}) if as_json else line)
    click.echo(summary.line("texts"), err=True)
