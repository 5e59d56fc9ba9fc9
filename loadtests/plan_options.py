"""A plan's fields as command-line options: one table for `inflight load` and for Locust's command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from inflight.common.schema.cli_options import FieldOption, field_options
from inflight.common.schema.validation_errors import problem
from loadtests.errors import LoadError
from loadtests.plan import Arrivals, LoadPlan
from loadtests.workloads.spec import WorkloadSpec

_NOT_OPTIONS = {("arrivals", "kind"), ("arrivals", "profile"), ("workload",), ("arrivals",)}
"""Fields without an option of the same name: `users`, `rate` and `trace` set them."""
_LOAD_OPTIONS = ("users", "rate")


def plan_options() -> tuple[FieldOption, ...]:
    """Return all options, in the order of the fields, those of the load first."""
    users = "Closed loop: number of users, over time: 8, or steps 5/30s,10/30s, or a ramp 1..20/60s."
    rate = "Open loop: sessions per second, over time, in the format of --users."
    fields = (
        *field_options(Arrivals, {"process": "arrivals"}, ("arrivals",)),
        *field_options(WorkloadSpec, path=("workload",)),
        *field_options(LoadPlan),
    )
    load = (FieldOption("users", ("users",), users, "8"), FieldOption("rate", ("rate",), rate, None))
    return (*load, *(option for option in fields if option.path not in _NOT_OPTIONS))


def plan_from_options(options: Mapping[str, Any], base: LoadPlan | None = None) -> LoadPlan:
    """Return a plan from options by key (None for those not given) over those of `base`. Raises LoadError."""
    values: dict[str, Any] = {} if base is None else base.model_dump()
    values["arrivals"] = {**values.get("arrivals", {}), **_arrivals(options)}
    for option in plan_options():
        value = options.get(option.key)
        if value is None or (option.multiple and not value) or option.path[0] in _LOAD_OPTIONS:
            continue
        place = values
        for part in option.path[:-1]:
            place = place.setdefault(part, {})
        place[option.path[-1]] = value
    try:
        return LoadPlan.model_validate(values)
    except ValidationError as error:
        raise LoadError(describe_error(error), "invalid_parameter") from None


def _arrivals(options: Mapping[str, Any]) -> dict[str, str]:
    """Return how sessions begin; a trace without further options is replayed."""
    named = [name for name in _LOAD_OPTIONS if options.get(name)]
    if len(named) > 1:
        raise LoadError("--users is a closed loop and --rate an open one; give only one of them", "invalid_parameter")
    if named:
        return {"kind": named[0], "profile": str(options[named[0]])}
    return {"kind": "trace"} if options.get("trace") else {}


def describe_error(error: ValidationError) -> str:
    """Return the first error, by its option."""
    first = error.errors()[0]
    place = tuple(str(part) for part in first["loc"] if isinstance(part, str))
    names = {option.path: option.name for option in plan_options()}
    if not place:
        return f"the plan is invalid: {problem(first)}"
    name = f"--{names[place]}" if place in names else ".".join(place)
    return f"{name} is {first['input']!r}: {problem(first)}"
