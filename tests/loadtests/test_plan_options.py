"""Each field of a plan is an option, and options make a plan."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from loadtests.plan import Arrivals, LoadPlan
from loadtests.plan_options import plan_from_options, plan_options
from loadtests.workloads.spec import WorkloadSpec

OPTIONS = {option.name: option for option in plan_options()}
NOT_BY_THEMSELVES = {"arrivals", "workload"}


def fields(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields)


def test_each_field_is_an_option_by_its_name() -> None:
    named = {name.replace("-", "_") for name in OPTIONS}
    assert fields(LoadPlan) - NOT_BY_THEMSELVES <= named
    assert fields(WorkloadSpec) <= named
    assert fields(Arrivals) - {"kind", "profile", "process"} <= named  # users, rate and arrivals say these
    assert {"users", "rate", "arrivals"} <= named
    assert len(OPTIONS) == len(plan_options())


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_says_what_it_is(name: str) -> None:
    option = OPTIONS[name]
    assert len(option.help) > 10
    assert "\n" not in option.help.strip()
    assert option.key.isidentifier()


def test_without_options_a_plan_is_the_default() -> None:
    assert plan_from_options({}) == LoadPlan()
    assert plan_from_options({option.key: None for option in plan_options()}) == LoadPlan()


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ("users", "rate")])
def test_each_option_reaches_its_field(name: str) -> None:
    """As a command line gives it: a text."""
    option = OPTIONS[name]
    value: Any = "3"
    if option.choices:
        value = option.choices[-1]
    elif option.flag:
        value = not option.default
    elif name in ("cancel-fraction", "prefix-fraction", "top-p"):
        value = "0.25"
    elif option.multiple:
        value = ("Name: 3",) if name == "header" else ("3",)
    found: Any = plan_from_options({option.key: value}).model_dump()
    for part in option.path:
        found = found[part]
    assert found != option.default
    assert str(value) in (str(found), f"{float(found):g}" if isinstance(found, float) else "")


@pytest.mark.parametrize(
    ("given", "kind", "profile"),
    [
        ({"users": "5/30s,10"}, "users", "5/30s,10"),
        ({"rate": "0.5"}, "rate", "0.5"),
        ({"trace": "sample:azure"}, "trace", "8"),
        ({"trace": "sample:azure", "rate": "3"}, "rate", "3"),
        ({"trace": "sample:azure", "users": "2"}, "users", "2"),
    ],
)
def test_how_sessions_begin_follows_from_what_is_asked(given: dict[str, str], kind: str, profile: str) -> None:
    arrivals = plan_from_options(given).arrivals
    assert (arrivals.kind, arrivals.profile) == (kind, profile)


def test_an_earlier_plan_has_the_say_where_nothing_is_given() -> None:
    base = plan_from_options({"rate": "3", "input_tokens": "7", "slo": ("p99 ttft <= 1s",), "seed": "4"})
    assert plan_from_options({}, base) == base
    assert plan_from_options({"slo": ()}, base) == base
    changed = plan_from_options({"users": "2", "seed": "5"}, base)
    assert changed == base.model_copy(
        update={"seed": 5, "arrivals": base.arrivals.model_copy(update={"kind": "users", "profile": "2"})}
    )
    assert LoadPlan.model_validate_json(base.model_dump_json()) == base


INVALID = ({"users": "1", "rate": "1"}, {"seconds": "soon"}, {"cancel_fraction": "1.5"}, {"burstiness": "0"})
"""Refused; `tests.loadtests.test_error_messages` has what is said of each."""
