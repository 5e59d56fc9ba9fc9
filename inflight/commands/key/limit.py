"""`inflight key limit`: set the quotas of a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from inflight.commands.key.options import key_file_option, quota_options, quotas_from
from inflight.gateway.key_editing import limit_key


@click.command(short_help="Set the quotas of a key.")
@click.argument("key", metavar="ID|NAME")
@quota_options
@click.option("--none", "remove", is_flag=True, help="Remove all quotas.")
@key_file_option
def command(key: str, key_file: Path, remove: bool, **quotas: Any) -> None:
    """Set the quotas of the valid key with this id or name; those that you leave out are removed. Without options, show
    them.

    A running gateway applies them within a second. The counts of the current minute and day remain.

    \b
      inflight key limit demo --requests-per-minute 120 --tokens-per-minute 100000
      inflight key limit demo
      inflight key limit demo --none
    """  # fmt: skip
    new = quotas_from(quotas)
    if remove and new.as_dict():
        raise click.UsageError("--none removes all quotas; leave it out, or leave out the others")
    changed = limit_key(key_file, key, new if remove or new.as_dict() else None)
    shown = ", ".join(f"{name}={value}" for name, value in changed.quotas.as_dict().items()) or "no quotas"
    click.echo(f"The key {changed.id} ({changed.name}) has {shown}.")
