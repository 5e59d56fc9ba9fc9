"""Creates options of a command from the fields of a pydantic model that have a description."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from inflight.common.schema.validation_errors import problem

if TYPE_CHECKING:  # the client's commands import this too, without pydantic
    from pydantic import BaseModel, ValidationError
    from pydantic.fields import FieldInfo

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Lines(click.types.StringParamType):
    """A repeatable text option; its environment variable holds one value per line."""

    envvar_list_splitter = "\n"


def model_options(model: type[BaseModel], names: Mapping[str, str] | None = None) -> Callable[[Decorated], Decorated]:
    """Decorate a command with the options, which it gets by keyword; None if not given.

    `names` maps fields to option names that differ.
    """

    def decorate(function: Decorated) -> Decorated:
        for name, field in reversed(list(model.model_fields.items())):
            if field.description:
                function = _option((names or {}).get(name, name), field)(function)
        return function

    return decorate


def collect_options(
    model: type[BaseModel], asked: dict[str, Any], names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Remove the given options from `asked` and return them by field name."""
    found = {}
    for name, field in model.model_fields.items():
        if field.description:
            value = asked.pop((names or {}).get(name, name))
            if value is not None and value != ():
                found[name] = value
    return found


def usage_error(error: ValidationError, names: Mapping[str, str]) -> click.UsageError:
    """Return the first error, with its option's name."""
    first = error.errors()[0]
    field = str(first["loc"][-1]) if first["loc"] else ""
    return click.UsageError(f"--{names.get(field, field).replace('_', '-')} is {first['input']!r}: {problem(first)}")


def _option(name: str, field: FieldInfo) -> Callable[[Any], Any]:
    kinds = [part for part in _parts(field.annotation) if part is not type(None)]
    kind: Any = kinds[0]
    dashed = f"--{name.replace('_', '-')}"
    if kind is bool:
        return click.option(f"{dashed}/--no-{dashed[2:]}", name, default=None, help=field.description)
    default = field.default
    known = default not in (None, ()) and "[default:" not in (field.description or "")
    shown = ", ".join(default) if isinstance(default, tuple) else default
    text = f"{field.description}  [default: {shown}]" if known else field.description
    many = typing.get_origin(kind) is tuple
    choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
    value_type: Any = click.Choice(choices) if choices else Lines() if many else kind
    return click.option(dashed, name, type=value_type, multiple=many, default=None, help=text)


def _parts(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)
