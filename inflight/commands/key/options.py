"""The option that all commands for keys share."""

from __future__ import annotations

from pathlib import Path

import click

key_file_option = click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    help="File of the keys' hashes.  [default: ~/.config/inflight/keys.json]",
)
