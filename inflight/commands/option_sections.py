"""Help in sections, for commands with many options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def section(
    title: str, *options: Callable[[Any], Any], starts: Mapping[str, str] | None = None
) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds options to a command, in one section of its help.

    From an option that `starts` names, they are in its section; those that have a section already stay there.
    """

    def decorate(function: Decorated) -> Decorated:
        earlier = list(getattr(function, "__click_params__", ()))
        for option in reversed(options):
            function = option(function)
        current = title
        for param in reversed(getattr(function, "__click_params__", ())):
            current = (starts or {}).get(param.name, current)
            if param not in earlier and not hasattr(param, "section"):
                param.section = current
        return function

    return decorate


class SectionedCommand(click.Command):
    """A command whose help shows its options in sections; those in no section come last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        others: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                title = getattr(param, "section", None)
                (others if title is None else sections.setdefault(title, [])).append(record)
        for title, records in (*sections.items(), ("Other options", others)):
            with formatter.section(title):
                formatter.write_dl(records)
