"""A plan's fields as command-line options: one table for `inflight load` and for Locust's command."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from inflight.common.schema.validation_errors import problem
from loadtests.errors import LoadError
from loadtests.plan import Arrivals, LoadPlan
from loadtests.workloads.spec import WorkloadSpec

_NOT_OPTIONS = {("arrivals", "kind"), ("arrivals", "profile"), ("workload",), ("arrivals",)}
"""Fields without an option of the same name: `users`, `rate` and `trace` set them."""
_LOAD_OPTIONS = ("users", "rate")
_NAMES: dict[tuple[str, ...], str] = {("arrivals", "process"): "arrivals"}


@dataclass(frozen=True)
class PlanOption:
    """An option: its name without dashes, and its path in the plan; `many` makes it repeatable."""

    name: str
    path: tuple[str, ...]
    help: str
    default: Any
    choices: tuple[str, ...] = ()
    flag: bool = False
    multiple: bool = False

    @property
    def key(self) -> str:
        """The option's name as a Python identifier."""
        return self.name.replace("-", "_")


def plan_options() -> tuple[PlanOption, ...]:
    """Return all options, in the order of the fields, those of the load first."""
    users = "Closed loop: number of users, over time: 8, or steps 5/30s,10/30s, or a ramp 1..20/60s."
    rate = "Open loop: sessions per second, over time, in the format of --users."
    load = (PlanOption("users", ("users",), users, "8"), PlanOption("rate", ("rate",), rate, None))
    parts: tuple[tuple[type[BaseModel], tuple[str, ...]], ...] = (
        (Arrivals, ("arrivals",)),
        (WorkloadSpec, ("workload",)),
        (LoadPlan, ()),
    )
    return (*load, *(option for model, path in parts for option in _options(model, path)))


def plan_from_options(given: Mapping[str, Any], base: LoadPlan | None = None) -> LoadPlan:
    """Return a plan from options by key (None for those not given) over those of `base`. Raises LoadError."""
    found: dict[str, Any] = {} if base is None else base.model_dump()
    found["arrivals"] = {**found.get("arrivals", {}), **_arrivals(given)}
    for option in plan_options():
        value = given.get(option.key)
        if value is None or (option.multiple and not value) or option.path[0] in _LOAD_OPTIONS:
            continue
        place = found
        for part in option.path[:-1]:
            place = place.setdefault(part, {})
        place[option.path[-1]] = value
    try:
        return LoadPlan.model_validate(found)
    except ValidationError as error:
        raise LoadError(describe_error(error), "invalid_parameter") from None


def _arrivals(given: Mapping[str, Any]) -> dict[str, str]:
    """Return how sessions begin; a trace without further options is replayed."""
    named = [name for name in _LOAD_OPTIONS if given.get(name)]
    if len(named) > 1:
        raise LoadError("--users is a closed loop and --rate an open one; give only one of them", "invalid_parameter")
    if named:
        return {"kind": named[0], "profile": str(given[named[0]])}
    return {"kind": "trace"} if given.get("trace") else {}


def _options(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[PlanOption]:
    for name, field in model.model_fields.items():
        place = (*path, name)
        if place in _NOT_OPTIONS:
            continue
        choices = _choices(field)
        yield PlanOption(
            name=_NAMES.get(place, name).replace("_", "-"),
            path=place,
            help=field.description or "",
            default=field.default,
            choices=choices,
            flag=_kinds(field) == (bool,),
            multiple=typing.get_origin(field.annotation) is tuple,
        )


def _kinds(field: FieldInfo) -> tuple[Any, ...]:
    """Return the possible types of a value, without None."""
    annotation: Any = field.annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(part for part in typing.get_args(annotation) if part is not type(None))
    return (annotation,)


def _choices(field: FieldInfo) -> tuple[str, ...]:
    (kind, *_) = _kinds(field)
    return tuple(map(str, typing.get_args(kind))) if typing.get_origin(kind) is typing.Literal else ()


def describe_error(error: ValidationError) -> str:
    """Return the first error, by its option."""
    first = error.errors()[0]
    place = tuple(str(part) for part in first["loc"] if isinstance(part, str))
    names = {option.path: option.name for option in plan_options()}
    if not place:
        return f"the plan is invalid: {problem(first)}"
    name = f"--{names[place]}" if place in names else ".".join(place)
    return f"{name} is {first['input']!r}: {problem(first)}"
