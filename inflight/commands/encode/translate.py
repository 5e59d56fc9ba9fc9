"""`inflight translate`: print translations or summaries of texts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
from inflight_client.encoder_call import TRANSLATE_OPTIONS

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
from inflight.commands.options.numbers import Number


@click.command(cls=SectionedCommand, short_help="Print translations or summaries of texts.")
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@encoder_options("texts")
@section(
    "Texts",
    click.option(
        "--to",
        "target_language",
        metavar="LANGUAGE",
        help="Language to translate to, as the model names it, such as de, de_DE or deu_Latn; or the name of a prompt.",
    ),
    click.option(
        "--from",
        "source_language",
        metavar="LANGUAGE",
        help="Language of the texts, for models that have a token for it.  [default: that of the model's tokenizer]",
    ),
)
@section(
    "Output",
    click.option("--beam-width", type=click.IntRange(1, 32), help="Number of beams.  [default: the model's]"),
    click.option("--length-penalty", type=Number(-10, 10), help="Above 1, longer answers.  [default: the model's]"),
    click.option(
        "--repetition-penalty", type=Number(0.1, 10), help="Above 1, fewer repetitions.  [default: the model's]"
    ),
    click.option(
        "--max-tokens", type=click.IntRange(min=1), help="Maximum tokens of an answer.  [default: the model's]"
    ),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print JSON objects, one per line: index, text, finish_reason, output_tokens, input_tokens and truncated.",
    ),
)
def command(texts: tuple[str, ...], input: Path | None, as_json: bool, retry_timeout: float, **arguments: Any) -> None:
    """Print the translation of each TEXT, or what else the model makes of it, such as its summary, as a line; - reads
    texts from standard input, one per line. Blank lines stay.

    \b
      inflight translate "Where is the station?" --to de
      inflight translate --input article.txt --beam-width 4 --json
      inflight translate - --from deu_Latn --to fra_Latn < sentences.txt > phrases.txt
    """  # fmt: skip
    named = read_texts(texts, input, "TEXT")
    asked = {**request_arguments(arguments), **{name: arguments.pop(name) for name in TRANSLATE_OPTIONS}}
    summary = Summary()
    with open_client(arguments, retry_timeout) as client:
        translate = partial(client.translate, **asked, return_errors=True)
        for index, _, result, place in in_blocks(named, translate, summary, blank_lines=True):
            record = {"index": index, "text": result[place], "finish_reason": result.finish_reasons[place]}
            record["output_tokens"] = result.output_tokens[place]
            click.echo(json_line({**record, **counts(result, place)}) if as_json else shown(result[place]))
    click.echo(summary.line("texts"), err=True)
