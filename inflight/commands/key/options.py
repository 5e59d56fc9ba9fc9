"""The option that all commands of `inflight key` have, and keys as JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from inflight.gateway.key_file import ApiKey, default_key_file, format_time

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _default(_ctx: click.Context, _option: click.Parameter, value: Path | None) -> Path:
    return value or default_key_file()


def key_file_option(function: Decorated) -> Decorated:
    """Add `--key-file`."""
    return click.option(
        "--key-file",
        type=click.Path(path_type=Path),
        callback=_default,
        help="File with the keys.  [default: $XDG_CONFIG_HOME/inflight/keys.json, or ~/.config/inflight/keys.json]",
    )(function)


def as_record(key: ApiKey) -> dict[str, Any]:
    """Return what the outputs show of a key."""
    return {
        "id": key.id,
        "name": key.name,
        "tenant": key.tenant,
        "models": list(key.models),
        "created": format_time(key.created),
        "expires": format_time(key.expires) if key.expires else None,
    }
