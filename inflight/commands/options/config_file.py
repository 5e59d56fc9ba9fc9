"""`--config FILE.yaml`: options of a command from a file, below the command line and the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from inflight.commands.option_sections import Decorated
from inflight.common.suggestions import nearest
from inflight.lazy_group import CONFIG_FILE

_MAX_BYTES = 1 << 20
_NOT_IN_FILES = ("config", "help")


class ModelName(click.ParamType[str]):
    """A directory, or a name of the hub; in a file of options, a relative path starts at the file's directory."""

    name = "text"


def config_option(arguments: Mapping[str, str]) -> Callable[[Decorated], Decorated]:
    """Add --config. `arguments` are the names of the command's arguments by what the file calls them."""

    def read(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
        if path is None:
            return
        try:
            defaults = _defaults(ctx.command, arguments, path)
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            what = " ".join(reason.split())
            raise click.BadParameter(f"{path}: {what}{'' if what.endswith('?') else '.'}", ctx, param) from error
        ctx.default_map = {**(ctx.default_map or {}), **defaults}
        ctx.meta[CONFIG_FILE] = path

    return click.option(
        "--config",
        metavar="FILE.yaml",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=read,
        help="File of options by their long names; the command line and environment variables override it.",
    )


def _defaults(command: click.Command, arguments: Mapping[str, str], path: Path) -> dict[str, Any]:
    """Return the values of a file by the names of the command's parameters, as texts of the command line.

    Raises OSError, and ValueError in words that name the line and the next step.
    """
    params = {name: (param, True) for param in command.params for name in _names(param, param.opts, arguments)}
    params |= {name: (param, False) for param in command.params for name in _names(param, param.secondary_opts, {})}
    defaults: dict[str, Any] = {}
    for name, values, is_list, line in _entries(path):
        if name not in params:
            near = next((shown for shown, of in arguments.items() if of in (name, f"{name}s")), None) or nearest(
                name.strip("-").replace("_", "-").lower(), params
            )
            meant = f"did you mean {near}?" if near else "`--help` lists the options"
            raise ValueError(f"line {line}: there is no option {name!r}; {meant}")
        param, is_primary = params[name]
        if param.name in defaults:
            raise ValueError(f"line {line}: {name} is set twice; remove one of the lines")
        takes_several = param.multiple or param.nargs == -1
        if is_list and not takes_several:
            raise ValueError(f"line {line}: {name} takes one value; write {name}: VALUE")
        base = path.absolute().parent
        if isinstance(param.type, click.Path):
            values = [str(base / os.path.expanduser(value)) for value in values]
        elif isinstance(param, click.Argument) or isinstance(param.type, ModelName):
            values = [_located(value, base) for value in values]
        if isinstance(param, click.Option) and param.is_flag:
            values = [_flag(values[0], name, line) is is_primary]
        assert param.name is not None
        defaults[param.name] = tuple(values) if takes_several else values[0]
    return defaults


def _names(param: click.Parameter, options: list[str], arguments: Mapping[str, str]) -> list[str]:
    """Return what a file calls a parameter: the long name of an option, or the chosen one of an argument."""
    if isinstance(param, click.Argument):
        return [shown for shown, name in arguments.items() if name == param.name]
    return [option[2:] for option in options if option.startswith("--") and option[2:] not in _NOT_IN_FILES]


def _flag(text: str, name: str, line: int) -> bool:
    value = click.types.BoolParamType.str_to_bool(text)
    if value is None:
        raise ValueError(f"line {line}: {name} is {text!r}; write true or false")
    return value


def _located(name: str, base: Path) -> str:
    """Return a path relative to the file's directory; a name of the hub or an address stays as it is."""
    from build_engines.checkpoints.hub import is_hub_name

    path = base / os.path.expanduser(name)
    return str(path) if os.path.lexists(path) or not ("://" in name or is_hub_name(name)) else name


def _entries(path: Path) -> Iterator[tuple[str, list[Any], bool, int]]:
    """Yield each entry's name, its values as they are written, whether they are a list, and its line.

    The text of a value counts, as on a command line: YAML's dates, octal numbers and anchors have no meaning here.
    """
    import yaml  # an extra's package, which a command without --config does not need

    from inflight.common.schema.yaml_values import check_nesting

    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError("it is larger than 1 MiB; name a file of options")
    try:
        text = content.decode("utf-8-sig")
        check_nesting(text)
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8; name a file of options") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"it is not valid YAML ({where}{getattr(error, 'problem', None) or error})") from None
    if root is None:
        return
    if not isinstance(root, yaml.MappingNode):
        raise ValueError("it holds no names with values; write a line NAME: VALUE for each option")
    for key, value in root.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError(f"line {line}: a name is expected; write NAME: VALUE")
        is_list = isinstance(value, yaml.SequenceNode)
        nodes = value.value if is_list else [value]
        if not all(isinstance(node, yaml.ScalarNode) for node in nodes):
            raise ValueError(
                f"line {line}: {key.value} must be a text, a number or a list of them; write {key.value}: VALUE"
            )
        if any(node.style is None and node.value.lower() in ("", "~", "null") for node in nodes):
            raise ValueError(f"line {line}: {key.value} has no value; give it one, or remove the line")
        if any("\0" in node.value or not _is_unicode(node.value) for node in nodes):
            raise ValueError(f"line {line}: {key.value} holds a character that no option can have; remove it")
        yield key.value, [node.value for node in nodes], is_list, line


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
