"""Messages of commands that run for long."""

from __future__ import annotations

import time

import click


def print_message(line: str) -> None:
    """Print what happened, and when, to standard error."""
    click.echo(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", err=True)
