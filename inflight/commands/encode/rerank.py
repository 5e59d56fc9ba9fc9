"""`inflight rerank`: print documents by their relevance for a query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from inflight.commands.encode.texts import Summary, encoder_options, json_line, read_texts, request_arguments, shown
from inflight.commands.option_sections import SectionedCommand, section
from inflight.commands.options.connection import open_client


@click.command(cls=SectionedCommand, short_help="Print documents by their relevance for a query.")
@click.argument("query")
@click.argument("documents", metavar="[DOCUMENT]...", nargs=-1)
@encoder_options("documents")
@section(
    "Output",
    click.option("--top-n", type=click.IntRange(min=1), help="How many documents to print.  [default: all]"),
    click.option(
        "--json", "as_json", is_flag=True, help="Print JSON objects, one per line: index, score and document."
    ),
)
def command(
    query: str,
    documents: tuple[str, ...],
    input: Path | None,
    top_n: int | None,
    as_json: bool,
    retry_timeout: float,
    **arguments: Any,
) -> None:
    """Print each DOCUMENT with its score for QUERY, best first; - reads documents from standard input, one per line.

    \b
      inflight rerank "What is tea?" "A drink made of leaves." "A town."
      inflight rerank "What is tea?" --input passages.txt --top-n 5
      grep -i tea notes.txt | inflight rerank "What is tea?" - --json
    """  # fmt: skip
    named = list(read_texts(documents, input, "DOCUMENT"))
    summary, asked = Summary(), request_arguments(arguments)
    with open_client(arguments, retry_timeout) as client:
        result = client.rerank(query, named, top_n=top_n, **asked)
    summary.add(result)
    for index, score in result.results:
        if as_json:
            click.echo(json_line({"index": index, "score": score, "document": named[index]}))
        else:
            click.echo(f"{score:.4f}\t{shown(named[index])}")
    click.echo(summary.line("documents"), err=True)
