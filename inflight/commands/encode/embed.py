"""`inflight embed`: print the embeddings of texts."""

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
)
from inflight.commands.option_sections import SectionedCommand, section
from inflight.commands.options.connection import open_client
from inflight.commands.terminal.standard_streams import stdout_is_terminal

_SHOWN_VALUES = 6


@click.command(cls=SectionedCommand, short_help="Print the embeddings of texts.")
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@encoder_options("texts")
@section(
    "Texts",
    click.option("--input-type", help="Prompt of the model to put before the texts, such as query or document."),
)
@section(
    "Output",
    click.option(
        "--dimensions", type=click.IntRange(min=1), help="Size of the vectors, if the model can shorten them."
    ),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print JSON objects, one per line: index, embedding, input_tokens and truncated.",
    ),
)
def command(
    texts: tuple[str, ...],
    input: Path | None,
    dimensions: int | None,
    input_type: str | None,
    as_json: bool,
    retry_timeout: float,
    **arguments: Any,
) -> None:
    """Print the embedding of each TEXT as a line of JSON (on a terminal only its first values); - reads texts from
    standard input, one per line.

    \b
      inflight embed "Green tea." "Black tea."
      inflight embed "What is tea?" --input-type query --dimensions 256
      inflight embed --input texts.txt --json > vectors.jsonl
      inflight embed - --server http://127.0.0.1:8080/v1 < texts.txt
    """  # fmt: skip
    named = read_texts(texts, input, "TEXT")
    summary, size = Summary(), 0
    asked = {**request_arguments(arguments), "input_type": input_type, "dimensions": dimensions}
    with open_client(arguments, retry_timeout) as client:
        for index, _, result, place in in_blocks(named, partial(client.embed, **asked, return_errors=True), summary):
            size = result.dimensions
            # The shortest digits that are read as the same float32.
            vector = [float(str(value)) for value in result[place]]
            if as_json:
                click.echo(json_line({"index": index, "embedding": vector, **counts(result, place)}))
            elif stdout_is_terminal():  # for people, who need --json or a pipe to get all
                click.echo(f"[{', '.join(f'{value:.4f}' for value in vector[:_SHOWN_VALUES])}, ...]")
            else:
                click.echo(json_line(vector))
    click.echo(summary.line("texts", f", {size} dimensions"), err=True)
