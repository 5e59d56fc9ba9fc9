"""Command-line options from the fields of a pydantic model: each field with a description is one."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class FieldOption:
    """An option that sets the field at `path`."""

    name: str
    """The option's name without dashes in front."""
    path: tuple[str, ...]
    help: str
    default: Any
    type: Any = str
    choices: tuple[str, ...] = ()
    multiple: bool = False

    @classmethod
    def from_field(cls, name: str, path: tuple[str, ...], field: FieldInfo) -> FieldOption:
        kind = _first_type(field.annotation)
        return cls(
            name=name.replace("_", "-"),
            path=path,
            help=field.description or "",
            default=None if field.is_required() else field.default,
            type=kind,
            choices=tuple(map(str, typing.get_args(kind))) if typing.get_origin(kind) is typing.Literal else (),
            multiple=typing.get_origin(kind) is tuple,
        )

    @property
    def key(self) -> str:
        """The option's name as a Python identifier."""
        return self.name.replace("-", "_")

    @property
    def flag(self) -> bool:
        return self.type is bool

    def add_to(self, command: Decorated) -> Decorated:
        """Decorate `command`, which gets None, or an empty tuple, for an option that is not given."""
        names = f"--{self.name}/--no-{self.name}" if self.flag else f"--{self.name}"
        kind = click.Choice(self.choices) if self.choices else Lines() if self.multiple else self.type
        add = click.option(names, self.key, type=kind, default=None, multiple=self.multiple, help=self._help())
        return add(command)

    def _help(self) -> str:
        default = self.default
        if default is False or default in (None, "", ()) or "[default:" in self.help:
            return self.help
        shown = self.name if self.flag else ", ".join(default) if isinstance(default, tuple) else default
        return f"{self.help}  [default: {shown}]"


def field_options(
    model: type[BaseModel], names: Mapping[str, str] | None = None, path: tuple[str, ...] = ()
) -> Iterator[FieldOption]:
    """Return the options for the fields of `model` at `path`; `names` has those not named as their field."""
    for name, field in model.model_fields.items():
        if field.description:
            yield FieldOption.from_field((names or {}).get(name, name), (*path, name), field)


def nested_options(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[FieldOption]:
    """Return the options for the fields of `model` at `path` and of the models in it."""
    yield from field_options(model, path=path)
    for name, field in model.model_fields.items():
        if hasattr(section := _first_type(field.annotation), "model_fields"):
            yield from nested_options(section, (*path, name))


def model_options(model: type[BaseModel], names: Mapping[str, str] | None = None) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds the options for the fields of `model` to a command; `collect_options` reads them."""

    def decorate(function: Decorated) -> Decorated:
        for option in reversed([*field_options(model, names)]):
            function = option.add_to(function)
        return function

    return decorate


def collect_options(
    model: type[BaseModel], options: dict[str, Any], names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the fields whose options were given, and remove these options from `given`."""
    values = {option.path[-1]: options.pop(option.key) for option in field_options(model, names)}
    return {name: value for name, value in values.items() if value not in (None, ())}


def usage_error(error: ValidationError, names: Mapping[str, str]) -> click.UsageError:
    """Return the first error, with the name of its option."""
    first = error.errors()[0]
    field = str(first["loc"][-1]) if first["loc"] else ""
    return click.UsageError(f"--{names.get(field, field).replace('_', '-')} is {first['input']!r}: {problem(first)}")


def _first_type(annotation: Any) -> Any:
    """Return the type of a value that is not None."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        annotation = next(part for part in typing.get_args(annotation) if part is not type(None))
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation
