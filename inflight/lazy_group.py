"""A group of commands that imports a command's module only when that command is called, so that help is instant."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """`table` has for each command's name the module that holds it as `command`, and what it does."""

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*args, **options)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        command = importlib.import_module(self._table[cmd_name][0]).command
        assert isinstance(command, click.Command)
        _show_variables(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._table.items()])


def _show_variables(command: click.Command) -> None:
    """Let the help name the environment variable of each option."""
    for option in command.params:
        if isinstance(option, click.Option):
            option.show_envvar = True
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _show_variables(inner)
