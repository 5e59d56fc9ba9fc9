"""`inflight key`: API keys of the gateway."""

from __future__ import annotations

import click

from inflight.lazy_group import LazyGroup

COMMANDS = {
    "add": ("inflight.commands.key.add", "Create a key and print it once."),
    "limit": ("inflight.commands.key.limit", "Set the quotas of a key."),
    "list": ("inflight.commands.key.list", "List keys: id, name, tenant, models, times, quotas, state."),
    "revoke": ("inflight.commands.key.revoke", "Revoke a key by its id or name."),
}


@click.group(cls=LazyGroup, commands=COMMANDS)
def command() -> None:
    """Manage the API keys of the gateway. A running gateway applies changes within a second.

    \b
      inflight key add web-shop --models llama --expires 90d
      inflight key list
      inflight key revoke web-shop
    """
