"""`inflight rerank`: print documents by their relevance for a query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from inflight.commands.encode.texts import Summary, encoder_options, json_line, read_texts, shown
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
    truncate: bool,
    as_json: bool,
    timeout: float | None,
    priority: int,
    retry_timeout: float,
    **arguments: Any,
) -> None:
    """Print each DOCUMENT with its score for QUERY, best first; - reads documents from standard input, one per line.

    \b
      inflight rerank "What is tea?" "A drink made of leaves." "A town."
      inflight rerank "What is tea?" --input passages.txt --top-n 5
      grep -i tea notes.txt | inflight rerank "What is tea?" - --json
    """  # fmt: skip
    given = list(read_texts(documents, input, "DOCUMENT"))
    summary = Summary()
    with open_client(arguments, retry_timeout) as client:
        found = client.rerank(query, given, top_n=top_n, truncate=truncate, priority=priority, timeout=timeout)
    summary.add(found)
    for index, score in found.results:
        if as_json:
            click.echo(json_line({"index": index, "score": score, "document": given[index]}))
        else:
            click.echo(f"{score:.4f}\t{shown(given[index])}")
    click.echo(summary.line("documents"), err=True)
