"""`inflight key list`: list API keys."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from inflight.commands.key.options import key_file_option
from inflight.gateway.keys import KeyFile, default_key_file


@click.command()
@key_file_option
@click.option(
    "--json", "as_json", envvar="INFLIGHT_KEY_LIST_JSON", is_flag=True, help="Print one line of JSON for each key."
)
def command(key_file: Path | None, as_json: bool) -> None:
    """List API keys with their tenant, models and state, without the keys themselves.

    \b
      inflight key list
      inflight key list --json
    """
    path = key_file or default_key_file()
    keys = KeyFile(path).read()
    if as_json:
        for key in keys:
            values = {
                "id": key.id, "name": key.name, "tenant": key.tenant, "models": list(key.models),
                "created": _time(key.created), "expires": _time(key.expires), "state": key.state,
            }  # fmt: skip
            click.echo(json.dumps(values))
        return
    if not keys:
        click.echo(f"There are no keys in {path}; `inflight key add NAME` creates one.")
        return
    table = Table("id", "name", "tenant", "models", "created", "expires", "state")
    for key in keys:
        models = ", ".join(key.models) or "all"
        table.add_row(
            key.id, key.name, key.tenant, models, _time(key.created), _time(key.expires) or "never", key.state
        )
    Console().print(table)


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="minutes")
