"""`--config FILE.yaml`: a command's arguments and options from a file, by their long names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from inflight.common.suggestions import nearest

_MAX_BYTES = 1 << 20
_NOT_IN_FILES = frozenset(("config", "help"))


def config_option(file: str) -> Callable[[Any], Any]:
    """Return the option `--config`. The command line and the environment have priority over the file."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE.yaml",
        is_eager=True,
        expose_value=False,
        callback=_apply,
        help=f"Read options from a file, such as {file}: a line NAME: VALUE for each, and MODEL as model.",
    )


def _apply(ctx: click.Context, option: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    known = _parameters(ctx.command)
    values: dict[str, Any] = {}
    for name, value in _read(path).items():
        key = name.replace("-", "_")
        parameter = known.get(key)
        if parameter is None:
            near = nearest(key, known)
            hint = f"did you mean {near.replace('_', '-')}?" if near else f"see {ctx.command_path} --help."
            raise click.UsageError(f"{path} has {name!r}, which is no option of {ctx.command_path}; {hint}", ctx)
        if parameter.name in values:
            raise click.UsageError(f"{path} has {name!r} twice, also with a dash; keep one of them.", ctx)
        assert parameter.name is not None
        values[parameter.name] = _value(parameter, name, value, path, ctx)
    ctx.default_map = {**(ctx.default_map or {}), **values}


def _parameters(command: click.Command) -> dict[str, click.Parameter]:
    """Return arguments and options by the names that a file may have for them."""
    found = {}
    for parameter in command.params:
        names = [opt[2:] for opt in parameter.opts if opt.startswith("--")] or parameter.opts[:1]
        found.update({name.replace("-", "_"): parameter for name in names})
    return {name: parameter for name, parameter in found.items() if name not in _NOT_IN_FILES}


def _read(path: Path) -> dict[str, Any]:
    import yaml

    from inflight.common.schema.yaml_values import load_values

    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ValueError("it is longer than a megabyte")
        found = load_values(content.decode())
    except OSError as error:
        raise click.UsageError(f"{path} can't be read ({error.strerror}); check the path.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = " ".join(str(error).split())[:300]
        raise click.UsageError(f"{path} can't be read ({what}); write a line NAME: VALUE for each option.") from error
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise click.UsageError(f"{path} has no names with values; write a line NAME: VALUE for each option.")
    return found


def _value(parameter: click.Parameter, name: str, value: Any, path: Path, ctx: click.Context) -> Any:
    """Return a value as click takes it: a list where an option may be repeated, and paths beside the file."""
    if isinstance(parameter, click.Option) and parameter.multiple:
        if isinstance(value, dict):  # --set
            value = [f"{key}={each}" for key, each in value.items()]
        values = value if isinstance(value, list) else [value]
        return [_single(parameter, name, each, path, ctx) for each in values]
    return _single(parameter, name, value, path, ctx)


def _single(parameter: click.Parameter, name: str, value: Any, path: Path, ctx: click.Context) -> Any:
    if not isinstance(value, str | int | float | bool):
        what = "nothing" if value is None else "a list" if isinstance(value, list) else "names with values"
        raise click.UsageError(f"{path} has {what} for {name!r}; give it one value, or remove the line.", ctx)
    is_flag = isinstance(parameter, click.Option) and parameter.is_flag
    if is_flag != isinstance(value, bool):
        wanted = "true or false" if is_flag else f"a value other than {str(value).lower()}"
        raise click.UsageError(f"{path} has {value!r} for {name!r}; give it {wanted}.", ctx)
    beside = path.parent / os.path.expanduser(str(value))
    is_path = isinstance(parameter.type, click.Path) or (isinstance(parameter, click.Argument) and beside.exists())
    return str(beside) if is_path else value
