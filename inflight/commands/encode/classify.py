"""`inflight classify`: print the classes of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from inflight.commands.encode.texts import Summary, encoder_options, in_blocks, json_line, read_texts, shown
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
def command(
    texts: tuple[str, ...],
    input: Path | None,
    truncate: bool,
    as_json: bool,
    timeout: float | None,
    priority: int,
    retry_timeout: float,
    **arguments: Any,
) -> None:
    """Print the best label of each TEXT and its score; - reads texts from standard input, one per line.

    \b
      inflight classify "I love this tea."
      inflight classify --input reviews.txt --json > labels.jsonl
      cut -f 3 reviews.tsv | inflight classify - --truncate
    """  # fmt: skip
    given = read_texts(texts, input, "TEXT")
    summary = Summary()
    with open_client(arguments, retry_timeout) as client:

        def call(block: Any) -> Any:
            return client.classify(block, truncate=truncate, priority=priority, timeout=timeout, return_errors=True)

        for index, text, found, place in in_blocks(given, call, summary):
            best = found[place]
            if not as_json:
                click.echo(f"{best.label}\t{best.score:.4f}\t{shown(text)}")
                continue
            click.echo(
                json_line(
                    {
                        "index": index,
                        "label": best.label,
                        "score": best.score,
                        "scores": best.scores,
                        "input_tokens": found.input_tokens[place],
                        "truncated": found.truncated[place],
                    }
                )
            )
    click.echo(summary.line("texts"), err=True)
