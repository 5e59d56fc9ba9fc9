"""`inflight key`: create, list and revoke API keys of the gateway."""

from __future__ import annotations

import click

from inflight.lazy_group import LazyGroup

COMMANDS = {
    "add": ("inflight.commands.key.add", "Create an API key and print it, once."),
    "list": ("inflight.commands.key.list", "List API keys, without the keys themselves."),
    "revoke": ("inflight.commands.key.revoke", "Revoke an API key; running gateways notice within a second."),
}


@click.group(cls=LazyGroup, commands=COMMANDS)
def command() -> None:
    """Create, list and revoke API keys of the gateway.

    Without a key, every user of this machine may use the gateway, and no other machine can reach it. Once there is a
    key file, every request needs a key.

    \b
      inflight key add my-app
      inflight key list
      inflight key revoke my-app
    """
