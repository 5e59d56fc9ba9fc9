"""`inflight audit`: what a gateway wrote with --audit."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import click

from inflight.commands.terminal.standard_streams import printable
from inflight.gateway.audit.check import summarize as summary_of
from inflight.gateway.audit.check import verify as verdict_of
from inflight.gateway.audit.line import TOKENS

_files = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))


@click.group()
def command() -> None:
    """Check and summarize the audit log that a gateway writes with --audit."""


@command.command(short_help="Check that no line was edited, removed or reordered.")
@_files
@click.option("--contains", metavar="SHA256", help="SHA-256 of a line that must be there.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def verify(files: tuple[Path, ...], contains: str | None, as_json: bool) -> None:
    """Check the chain of FILE, and of the full files before it.

    Name copies of its files in their order. Lines that were removed from the end, or a log that was written again as a
    whole, are found by --contains: pass the last SHA-256 that an earlier check printed.

    Exit codes: 0 if no line was edited, removed or reordered; 1 with the first wrong line.

    \b
      inflight audit verify audit.jsonl
      inflight audit verify audit.jsonl --json | jq -r .sha256
    """  # fmt: skip
    if contains is not None and not re.fullmatch("[0-9a-f]{64}", contains):
        raise click.UsageError("--contains must be the 64 hexadecimal digits of an SHA-256, as verify prints it.")
    verdict = verdict_of(files, contains or "")
    if as_json:
        click.echo(json.dumps(verdict.as_record()))
    else:
        for sentence in verdict.sentences():
            click.echo(sentence)
    sys.exit(1 if verdict.problem else 0)


@command.command(short_help="Count requests by key, model, target, error and more.")
@_files
@click.option("--json", "as_json", is_flag=True, help="Print the counts as one JSON object.")
def summarize(files: tuple[Path, ...], as_json: bool) -> None:
    """Count the lines of FILE, and of the full files before it, by each value of their fields, with their tokens.

    \b
      inflight audit summarize audit.jsonl
      inflight audit summarize audit.jsonl --json | jq .key
    """
    summary = summary_of(files)
    if as_json:
        click.echo(json.dumps(summary))
        return
    click.echo(f"{summary.pop('from') or 'no time'} to {summary.pop('to') or 'no time'}")
    for field, counts in summary.items():
        for value, numbers in sorted(counts.items(), key=lambda each: -each[1]["lines"]):
            tokens = ", ".join(f"{numbers[name]} {name.replace('_', ' ')}" for name in TOKENS)
            shown = printable(json.dumps(value, ensure_ascii=False)[1:-1])
            click.echo(f"{field:<16} {shown}: {numbers['lines']} lines, {tokens}")
