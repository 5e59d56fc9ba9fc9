"""The option that all commands of `inflight key` have, and keys as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from inflight.commands.option_sections import Decorated
from inflight.gateway.key_file import OPTIONS, ApiKey, Quotas, default_key_file, format_time


def _default(_ctx: click.Context, _option: click.Parameter, value: Path | None) -> Path:
    return value or default_key_file()


key_file_option = click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    callback=_default,
    help="File with the keys.  [default: $XDG_CONFIG_HOME/inflight/keys.json, or ~/.config/inflight/keys.json]",
)

_QUOTA_OPTIONS = {
    "requests_per_minute": "Requests that may start within a minute.",
    "tokens_per_minute": "Tokens within a minute: of prompts, and of answers up to their max_tokens.",
    "tokens_per_day": "Tokens within a day (UTC).",
    "max_concurrent": "Requests at a time.",
}


def quota_options(function: Decorated) -> Decorated:
    """Add an option for each quota; `quotas_from` reads them."""
    for name, text in reversed(_QUOTA_OPTIONS.items()):
        words = f"--{name.replace('_', '-')}"
        function = click.option(words, type=click.IntRange(1), metavar="N", help=f"{text}  [default: no limit]")(
            function
        )
    return function


def quotas_from(options: dict[str, Any]) -> Quotas:
    """Return the quotas of the options of `quota_options`."""
    return Quotas(**{name: options[name] for name in _QUOTA_OPTIONS})


def as_record(key: ApiKey) -> dict[str, Any]:
    """Return what the outputs show of a key."""
    return {
        "id": key.id,
        "name": key.name,
        "tenant": key.tenant,
        "models": list(key.models),
        "created": format_time(key.created),
        "expires": format_time(key.expires) if key.expires else None,
        "quotas": key.quotas.as_dict(),
        **{name: getattr(key, name) for name in OPTIONS},
    }
