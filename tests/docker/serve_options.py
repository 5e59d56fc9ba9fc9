"""What `inflight serve` reads from its environment."""

from __future__ import annotations

import click

from inflight.commands.serve import command


def variables() -> set[str]:
    """The names of the variables that set its options."""
    named = {option.name: option for option in command.params if isinstance(option, click.Option)}
    return {str(option.envvar or f"INFLIGHT_SERVE_{name}".upper()) for name, option in named.items()}


def value(name: str, default: str | None = None) -> float:
    """The seconds that an option is set to, or its default."""
    option = next(param for param in command.params if param.name == name)
    return float(default if default is not None else str(option.default))
