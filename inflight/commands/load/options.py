"""The options of `inflight load run` and `sweep`: a plan's fields, and who sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import ValidationError

from inflight.common.schema.cli_options import Lines
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.plan_options import PlanOption, describe_error, plan_from_options, plan_options
from loadtests.run.plan_check import check_plan, check_workload
from loadtests.run.worker_spec import WorkerSpec

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def load_options(*without: str) -> Callable[[Decorated], Decorated]:
    """Decorate a command with all of them but some; it gets them by keyword, for `plan_from_options` and
    `worker_spec_from_options`.
    """

    def decorate(function: Decorated) -> Decorated:
        ours = [option for option in plan_options() if option.name not in without]
        for decorator in reversed([*map(_click_option, ours), *_worker_options()]):
            function = decorator(function)
        return function

    return decorate


def plan_from_command(asked: dict[str, Any]) -> LoadPlan:
    """The plan that the options ask for; they are taken out of `asked`. Wrong ones are wrong usage."""
    file: Path | None = asked.pop("plan")
    names = {option.key for option in plan_options()}
    given = {name: asked.pop(name) for name in list(asked) if name in names}
    try:
        plan = validated_plan(given, None if file is None else _read(file))
        check_workload(plan)
        return plan
    except LoadError as error:
        raise click.UsageError(str(error)) from error


def validated_plan(given: Mapping[str, Any], base: LoadPlan | None) -> LoadPlan:
    """A plan from options over what `base` has, with what its texts say; wrong ones are wrong usage."""
    try:
        plan = plan_from_options(given, base)
        check_plan(plan)
    except LoadError as error:
        raise click.UsageError(str(error)) from error
    if plan.metrics_url is not None and not plan.metrics_url.startswith(("http://", "https://")):
        raise click.BadParameter("it is a URL of http or https.", param_hint="'--metrics-url'")
    return plan


def worker_spec_from_options(asked: dict[str, Any]) -> WorkerSpec:
    team = WorkerSpec(asked.pop("workers"), asked.pop("expect_workers"), asked.pop("bind"), asked.pop("join_timeout"))
    host, _, port = team.bind.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 65536):
        raise click.BadParameter("it is HOST:PORT.", param_hint="'--bind'")
    return team


def _click_option(option: PlanOption) -> Callable[[Decorated], Decorated]:
    names = f"--{option.name}/--no-{option.name}" if option.flag else f"--{option.name}"
    default = option.default
    shown = "" if default in (None, "", ()) else f"  [default: {default}]"
    if option.flag:
        shown = {True: f"  [default: {option.name}]", False: ""}.get(default, "")
    kind: click.ParamType[Any] | None = click.Choice(option.choices) if option.choices else None
    if option.multiple:
        kind = Lines()
    # No default here: a plan's file has the say where an option is not given.
    return click.option(
        names, option.key, type=kind, default=None, multiple=option.multiple, help=option.help.rstrip(".") + "." + shown
    )


def _worker_options() -> list[Callable[[Any], Any]]:
    whole = click.IntRange(0)
    return [
        click.option(
            "--plan",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A plan.json of an earlier run, to make it again; other options change it.",
        ),
        click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes that send."),
        click.option(
            "--expect-workers",
            type=whole,
            default=0,
            show_default=True,
            help="Wait for so many of other machines, where `inflight load worker` runs.",
        ),
        click.option("--bind", default=WorkerSpec.bind, show_default=True, help="Where workers find the master."),
        click.option(
            "--join-timeout",
            type=click.FloatRange(0, min_open=True),
            default=WorkerSpec.join_timeout,
            show_default=True,
            help="How long all workers may take to be there.",
        ),
    ]


def _read(file: Path) -> LoadPlan:
    try:
        return LoadPlan.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise LoadError(f"{file} is no plan: {describe_error(error)}", "invalid_parameter") from None
    except OSError as error:
        raise LoadError(f"{file} can't be read: {error.strerror}", "invalid_parameter") from None
