"""A plan's fields as options of a command line: one table for `inflight load` and for Locust's own."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from loadtests.errors import LoadError
from loadtests.plan import Arrivals, LoadPlan
from loadtests.workloads.spec import WorkloadSpec

_NOT_OPTIONS = {("arrivals", "kind"), ("arrivals", "profile"), ("workload",), ("arrivals",)}
"""Fields that are no option by themselves: `users`, `rate` and `trace` say them."""
_LOAD_OPTIONS = ("users", "rate")
_NAMES: dict[tuple[str, ...], str] = {("arrivals", "process"): "arrivals"}


@dataclass(frozen=True)
class PlanOption:
    """An option by its name without dashes before it, and where in the plan it goes; `many` may be given again."""

    name: str
    path: tuple[str, ...]
    help: str
    default: Any
    choices: tuple[str, ...] = ()
    flag: bool = False
    multiple: bool = False

    @property
    def key(self) -> str:
        """As Python names it."""
        return self.name.replace("-", "_")


def plan_options() -> tuple[PlanOption, ...]:
    """All of them, in the order of the fields, those of the load first."""
    users = "Closed loop: so many users, over time: 8, or 5/30s,10/30s in steps, or 1..20/60s."
    rate = "Open loop: so many sessions a second, over time, written as users are."
    load = (PlanOption("users", ("users",), users, "8"), PlanOption("rate", ("rate",), rate, None))
    parts: tuple[tuple[type[BaseModel], tuple[str, ...]], ...] = (
        (Arrivals, ("arrivals",)),
        (WorkloadSpec, ("workload",)),
        (LoadPlan, ()),
    )
    return (*load, *(option for model, path in parts for option in _options(model, path)))


def plan_from_options(given: Mapping[str, Any], base: LoadPlan | None = None) -> LoadPlan:
    """A plan from options by their keys, None for those not given, over what `base` has. Raises LoadError."""
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
    """How sessions begin; a trace without more words is replayed."""
    asked = [name for name in _LOAD_OPTIONS if given.get(name)]
    if len(asked) > 1:
        raise LoadError("--users is a closed loop and --rate an open one; give one of them", "invalid_parameter")
    if asked:
        return {"kind": asked[0], "profile": str(given[asked[0]])}
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
    """What a value may be, beside None."""
    annotation: Any = field.annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(part for part in typing.get_args(annotation) if part is not type(None))
    return (annotation,)


def _choices(field: FieldInfo) -> tuple[str, ...]:
    (kind, *_) = _kinds(field)
    return tuple(map(str, typing.get_args(kind))) if typing.get_origin(kind) is typing.Literal else ()


def describe_error(error: ValidationError) -> str:
    """The first thing that is wrong, by its option."""
    first = error.errors()[0]
    place = tuple(str(part) for part in first["loc"] if isinstance(part, str))
    names = {option.path: option.name for option in plan_options()}
    what = f"{first['msg'][:1].lower()}{first['msg'][1:]}".removeprefix("value error, ")
    if not place:
        return f"the plan can't be carried out: {what}"
    name = f"--{names[place]}" if place in names else ".".join(place)
    return f"{name} is {first['input']!r}: {what}"
