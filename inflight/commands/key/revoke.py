"""`inflight key revoke`: end a key."""

from __future__ import annotations

from pathlib import Path

import click

from inflight.commands.key.options import key_file_option
from inflight.gateway.key_editing import revoke_key


@click.command(short_help="Revoke a key by its id or name.")
@click.argument("key", metavar="ID|NAME")
@key_file_option
def command(key: str, key_file: Path) -> None:
    """Revoke the key with this id, or every key of this name. A running gateway refuses it within a second.

    The file keeps the key as revoked, so that `inflight key list` shows it. A new key may have its name.

    \b
      inflight key revoke web-shop
      inflight key revoke key-0123456789ab
    """
    for revoked in revoke_key(key_file, key):
        click.echo(f"Revoked the key {revoked.id} ({revoked.name}).")
