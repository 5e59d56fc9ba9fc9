"""A group of commands that imports a command's module only when that command is called, so that help is instant."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource
from click.exceptions import NoSuchCommand

from inflight.common.suggestions import nearest

_LEAST_SIMILARITY = 0.75
CONFIG_FILE = "inflight.config_file"
"""The key of a context's `meta` under which the path of its file of options is."""


class LazyGroup(click.Group):
    """`table` has for each command's name the module that holds it as `command`, and what it does.

    `sections`: the commands of each section of the help. `hints`: what other programs call commands, and what to use
    here.
    """

    def __init__(
        self,
        *args: Any,
        commands: Mapping[str, tuple[str, str]],
        hints: Mapping[str, str] | None = None,
        sections: Mapping[str, Sequence[str]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._commands, self._hints = commands, hints or {}
        self._sections = sections or {"Commands": tuple(commands)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands:
            return None
        command = importlib.import_module(self._commands[cmd_name][0]).command
        assert isinstance(command, click.Command)
        _name_variables(command, _prefix(ctx.auto_envvar_prefix, cmd_name) if ctx.auto_envvar_prefix else None)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it; a name that is none here is answered with the one that is meant."""
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            hints = {"help": f"`{ctx.command_path} --help`", **self._hints}
            name = error.command_name
            name = name if name in hints else nearest(name, (*hints, *self._commands), _LEAST_SIMILARITY) or name
            if use := hints.get(name):
                raise NoSuchCommand(error.command_name, f"{error.message} Use {use}.", ctx=ctx) from None
            raise NoSuchCommand(error.command_name, error.message, self._commands, ctx) from None
        if name and command and ctx.auto_envvar_prefix and not isinstance(command, LazyGroup):
            warn_unused_variables(command, _prefix(ctx.auto_envvar_prefix, name))
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._commands))
        for title, names in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), self._commands[name][1]) for name in names])


def name_source(error: click.BadParameter) -> None:
    """Let the message name the environment variable or the file of options where the wrong value is, or else the flag
    alone."""
    ctx, option = error.ctx, error.param
    if ctx is None or not isinstance(option, click.Option) or option.name is None:
        return
    error.param_hint = error.param_hint or click.Parameter.get_error_hint(option, ctx)
    source = ctx.get_parameter_source(option.name)
    if source is ParameterSource.DEFAULT_MAP and CONFIG_FILE in ctx.meta:
        error.param_hint = f"{option.opts[0].lstrip('-')} in {ctx.meta[CONFIG_FILE]}"
    if source is ParameterSource.ENVIRONMENT and ctx.auto_envvar_prefix:
        error.param_hint = f"the environment variable {' or '.join(_variable_names(option, ctx.auto_envvar_prefix))}"


def warn_unused_variables(command: click.Command, prefix: str) -> None:
    """Name variables of a command's prefix that it does not read, each with the one that may be meant."""
    variables = list(_environment_variables(command, prefix))
    for name in sorted(os.environ):
        if name.startswith(f"{prefix}_") and name not in variables:
            near = nearest(name, variables)
            meant = f"did you mean {near}?" if near else "`--help` lists those it reads."
            click.echo(f"Warning: the environment variable {name} is not used; {meant}", err=True)


def _environment_variables(command: click.Command, prefix: str) -> Iterator[str]:
    for option in command.params:
        if isinstance(option, click.Option):
            yield from _variable_names(option, prefix)
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _environment_variables(inner, _prefix(prefix, name))


def _variable_names(option: click.Option, prefix: str) -> list[str]:
    """The variables that an option reads."""
    if option.envvar is not None:
        return [option.envvar] if isinstance(option.envvar, str) else list(option.envvar)
    return [f"{prefix}_{(option.name or '').upper()}"]


def _prefix(parent: str, name: str) -> str:
    return f"{parent}_{name.upper().replace('-', '_')}"


def _name_variables(command: click.Command, prefix: str | None) -> None:
    """Give each option the environment variable of its flag, which the help names, instead of its parameter's."""
    for option in command.params:
        if isinstance(option, click.Option):
            option.show_envvar = True
            if isinstance(option.type, click.IntRange | click.FloatRange):  # a wrong value is "not a valid integer"
                option.type.name = option.type.name.removesuffix(" range")
            if prefix is not None:
                option.envvar = _prefix(prefix, next(flag for flag in option.opts if flag.startswith("--")).lstrip("-"))
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            _name_variables(inner, None if prefix is None else _prefix(prefix, name))
