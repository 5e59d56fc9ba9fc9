"""`inflight cache`: the response cache of the gateway."""

from __future__ import annotations

import sqlite3

import click
from inflight_client import InflightError

from inflight.gateway.response_cache.store import FILE, clear
from inflight.gateway.settings import DEFAULT_PORT, GatewaySettings


@click.group()
def command() -> None:
    """Empty the response cache of the gateway (docs/response-cache.md). `inflight list` shows cached engines."""


@command.command("clear", short_help="Forget all stored answers.")
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="The gateway's.")
@click.option("--state-dir", type=click.Path(), help="The gateway's.  [default: that of its port]")
def clear_command(port: int, state_dir: str | None) -> None:
    """Forget all stored answers, and those that are being computed, also while gateways run."""
    path = GatewaySettings((), port=port, state_dir=state_dir).state_path / FILE
    try:
        removed = clear(path) if path.exists() else 0
    except (sqlite3.Error, OSError) as error:
        raise InflightError(
            f"{path} can't be emptied ({error}); try again, or delete it while no gateway runs", "output_unwritable"
        ) from None
    click.echo(f"Removed {removed} answers from {path}.")
