"""`inflight key limit`: set the quotas of a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from inflight.commands.key.options import key_file_option, quota_options, quotas_from
from inflight.gateway.key_file import limit_key


@click.command(short_help="Set the quotas of a key.")
@click.argument("key", metavar="ID|NAME")
@quota_options
@key_file_option
def command(key: str, key_file: Path, **quotas: Any) -> None:
    """Set the quotas of the valid key with this id or name; those that you leave out are removed.

    A running gateway applies them within a second. The counts of the current minute and day remain.

    \b
      inflight key limit demo --requests-per-minute 120 --tokens-per-minute 100000
      inflight key limit demo
    """  # fmt: skip
    changed = limit_key(key_file, key, quotas_from(quotas))
    shown = ", ".join(f"{name}={value}" for name, value in changed.quotas.as_dict().items()) or "no quotas"
    click.echo(f"The key {changed.id} ({changed.name}) has now {shown}.")
