"""The options of `inflight load run` and `sweep`: the fields of a plan, and the workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from inflight.commands.option_sections import Decorated, section
from inflight.commands.options.usage import usage_errors
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.plan_options import describe_error, plan_from_options, plan_options
from loadtests.run.plan_check import check_plan, check_workload
from loadtests.run.worker_spec import WorkerSpec

# In the order of the plan's fields.
_SECTIONS_BY_FIRST_OPTION = {
    "task": "Encoders",
    "input_tokens": "Requests",
    "prompts": "Prompts and traces from files",
    "server": "Connection",
    "input_type": "Encoders",
    "warmup": "Arrivals",
    "drain_seconds": "Connection",
    "temperature": "Requests",
    "tenant": "Connection",
    "seed": "Requests",
    "slo": "Verdict and report",
    "plan": "Plan and machines",
}


def load_options(*without: str) -> Callable[[Decorated], Decorated]:
    """Add the load options, except those in `without`; `plan_from_command` and `worker_spec_from_options` read them."""

    options = [option.add_to for option in plan_options() if option.name not in without]
    return section("Arrivals", *options, *_worker_options(), starts=_SECTIONS_BY_FIRST_OPTION)


def plan_from_command(options: dict[str, Any]) -> LoadPlan:
    """Return the plan that the options describe and remove them from `options`. Invalid values are usage errors."""
    file: Path | None = options.pop("plan")
    names = {option.key for option in plan_options()}
    values = {name: options.pop(name) for name in list(options) if name in names}
    with usage_errors():
        plan = validated_plan(values, None if file is None else _read(file))
        if skipped := check_workload(plan):
            click.echo(f"NOTE: {skipped}", err=True)
        return plan


def validated_plan(options: Mapping[str, Any], base: LoadPlan | None) -> LoadPlan:
    """Return a plan from options over those of `base`, and validate it. Invalid values are usage errors."""
    with usage_errors():
        plan = plan_from_options(options, base)
        check_plan(plan)
    if plan.metrics_url is not None and not plan.metrics_url.startswith(("http://", "https://")):
        raise click.BadParameter("it must be an http or https URL.", param_hint="'--metrics-url'")
    return plan


def worker_spec_from_options(options: dict[str, Any]) -> WorkerSpec:
    team = WorkerSpec(
        options.pop("workers"), options.pop("expect_workers"), options.pop("bind"), options.pop("join_timeout")
    )
    host, _, port = team.bind.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 65536):
        raise click.BadParameter("it must be HOST:PORT.", param_hint="'--bind'")
    return team


def _worker_options() -> list[Callable[[Any], Any]]:
    shown = partial(click.option, show_default=True)
    positive = click.FloatRange(0, min_open=True)
    return [
        click.option(
            "--plan",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="plan.json of an earlier run to repeat; other options override it.",
        ),
        shown("--workers", type=click.IntRange(1), default=1, help="Number of processes that send requests."),
        shown(
            "--expect-workers",
            type=click.IntRange(0),
            default=0,
            help="Number of workers on other machines to wait for (`inflight load worker`).",
        ),
        shown("--bind", default=WorkerSpec.bind, help="Address where the master listens for workers."),
        shown(
            "--join-timeout",
            type=positive,
            default=WorkerSpec.join_timeout,
            help="How long to wait for all workers to connect.",
        ),
    ]


def _read(file: Path) -> LoadPlan:
    try:
        return LoadPlan.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise LoadError(f"{file} is not a plan: {describe_error(error)}", "invalid_parameter") from None
    except OSError as error:
        raise LoadError(f"{file} cannot be read: {error.strerror}", "invalid_parameter") from None
