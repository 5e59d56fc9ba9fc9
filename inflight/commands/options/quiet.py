"""The option of commands that report on long work."""

from __future__ import annotations

import click

quiet_option = click.option("--quiet", "-q", is_flag=True, help="Print errors only, without progress.")
