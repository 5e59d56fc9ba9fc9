"""`inflight key revoke`: revoke an API key."""

from __future__ import annotations

from pathlib import Path

import click

from inflight.commands.key.options import key_file_option
from inflight.gateway.keys import KeyFile, default_key_file


@click.command()
@click.argument("key")
@key_file_option
def command(key: str, key_file: Path | None) -> None:
    """Revoke the API key with this name or id. Running gateways refuse it within a second.

    \b
      inflight key revoke my-app
    """
    found = KeyFile(key_file or default_key_file()).revoke(key)
    click.echo(f"Revoked {found.name} (id {found.id}).")
