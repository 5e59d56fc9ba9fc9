"""`inflight key list`: show the keys."""

from __future__ import annotations

import json
from pathlib import Path

import click

from inflight.commands.key.options import as_record, key_file_option
from inflight.gateway.key_file import KeyEntry, format_time, read_key_file


@click.command(short_help="List keys: id, name, tenant, models, times, quotas, state.")
@key_file_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per key, one per line.")
def command(key_file: Path, as_json: bool) -> None:
    """List the keys in the order of their creation, with their state: valid, expired or revoked.

    \b
      inflight key list
      inflight key list --json | jq -r 'select(.state == "valid") | .name'
    """
    file = read_key_file(key_file)
    if as_json:
        for entry in file.entries if file else ():
            click.echo(json.dumps({**as_record(entry.key), "state": entry.state}))
    elif file is None or not file.entries:
        click.echo(f"There are no keys in {key_file}; create one with `inflight key add NAME`.", err=True)
    else:
        _show(file.entries)


def _show(entries: tuple[KeyEntry, ...]) -> None:
    from rich.cells import cell_len  # counts wide characters as two

    rows = [("ID", "NAME", "TENANT", "MODELS", "CREATED", "EXPIRES", "QUOTAS", "STATE"), *map(_row, entries)]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())


def _row(entry: KeyEntry) -> tuple[str, ...]:
    key = entry.key
    expires = format_time(key.expires) if key.expires else "never"
    quotas = " ".join(f"{name}={value}" for name, value in key.quotas.as_dict().items()) or "none"
    models = ",".join(key.models) or "all"
    options = (name if value is True else f"{name}={json.dumps(value)}" for name, value in key.options.items())
    state = ", ".join((entry.state, *options))
    return key.id, key.name, key.tenant, models, format_time(key.created), expires, quotas, state
