"""Options of several models, and the fleet that serves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from build_engines.manifest import Manifest, read_manifest
from build_engines.plan.size import format_size, parse_size
from inflight.commands.option_sections import Decorated, section
from inflight.commands.options.numbers import ParsedValue, duration
from inflight.commands.plan.engine_memory import engine_memory
from inflight.commands.terminal.standard_streams import print_message
from inflight.deploy.errors import invalid
from inflight.deploy.fleet.fleet import Fleet, FleetModel
from inflight.deploy.fleet.residency import Limits
from inflight.deploy.memory import available_bytes
from inflight.deploy.repository.engine_set import verify_encoder_for
from inflight.deploy.repository.manifest import is_repository
from inflight.deploy.repository.model_names import option_name
from inflight.deploy.repository.options import DeploymentOptions, EncoderOptions, given_options
from inflight.deploy.server.server import ServerSettings

_OF_ONE_MODEL = ("adapters", "adapter_directory", "draft_engine", "served_model_name")


@dataclass(frozen=True)
class FleetOptions:
    """The options of `fleet_options`, by their names."""

    memory: int | None
    pin: tuple[str, ...]
    idle_unload: float | None
    min_residence: float


def fleet_options() -> Callable[[Decorated], Decorated]:
    return section(
        "Several models",
        click.option(
            "--memory",
            type=ParsedValue("SIZE", parse_size),
            help="Memory of all models that are loaded at a time, such as 16GiB.  [default: what is available]",
        ),
        click.option(
            "--pin", metavar="MODEL", multiple=True, help="Load it at the start, and keep it loaded (repeatable)."
        ),
        click.option(
            "--idle-unload",
            type=ParsedValue("TIME", duration),
            help="Unload a model that has had no request for so long, such as 10m.  [default: keep it]",
        ),
        click.option(
            "--min-residence",
            type=ParsedValue("TIME", duration),
            default="60s",
            show_default=True,
            help="Keep a model loaded for at least so long, before it makes room for another one.",
        ),
    )


def make_fleet(
    engines: Sequence[tuple[str, str | Path]],
    deployment: DeploymentOptions,
    settings: ServerSettings,
    options: FleetOptions,
    drain_seconds: float,
) -> Fleet:
    """Return the fleet of the engines, each with what the user called it; encoders and given ports are the first one's.

    Raises BuildError as `read_manifest` does, and DeployError `invalid_parameter` for engines that can't be served
    together.
    """
    if unfit := next((name for name in given_options(deployment) if name in _OF_ONE_MODEL), None):
        raise invalid(f"{option_name(unfit)} is for one model, and several are to be served; leave it out.")
    memory = options.memory or available_bytes()
    models: dict[str, FleetModel] = {}
    called: dict[str, str] = {}
    for argument, engine in engines:
        manifest = _generator(argument, engine)
        if manifest.name in models:
            raise invalid(
                f"{called[manifest.name]} and {argument} both have the name {manifest.name}, by which requests tell"
                " models apart; build one of them with another --name."
            )
        first = not models
        needed = engine_memory(Path(engine), manifest, deployment, memory // len(engines))
        own = replace(
            deployment,
            kv_cache_tokens=needed.kv_cache_tokens,
            encoders=deployment.encoders if first else EncoderOptions(),
        )
        models[manifest.name] = FleetModel(
            manifest.name,
            Path(engine),
            manifest,
            own,
            settings if first else replace(settings, http_port=0, grpc_port=0, metrics_port=0),
            needed.total + _encoder_bytes(own),
            pinned=argument in options.pin or manifest.name in options.pin or bool(own.encoders.directories()),
        )
        called[manifest.name] = argument
    for pin in options.pin:
        if pin not in (*called, *called.values()):
            raise invalid(f"--pin {pin} is none of the served models; name one of {', '.join(called)}.")
    _check_memory(list(models.values()), memory)
    limits = Limits(memory, options.min_residence, options.idle_unload)
    return Fleet(list(models.values()), limits, print_message, drain_seconds)


def _generator(argument: str, engine: str | Path) -> Manifest:
    if "://" in str(engine) or is_repository(Path(engine)):
        raise invalid(
            f"{argument} is an assembled repository, which `inflight serve` serves alone; name the"
            " engine directory that it was assembled from."
        )
    manifest = read_manifest(Path(engine))
    if not isinstance(manifest, Manifest):
        raise invalid(f"{argument} does not generate text; serve it beside the first model with --{manifest.task}.")
    if manifest.target != "openvino":
        raise invalid(
            f"{argument} has the target {manifest.target}, and only engines for processors share a machine's memory;"
            " serve it alone, and put `inflight gateway` in front of all servers."
        )
    return manifest


def _encoder_bytes(options: DeploymentOptions) -> int:
    encoders = (verify_encoder_for(*each) for each in options.encoders.directories().items())
    return sum(
        sum(file.bytes for file in each.files.values()) + (getattr(each, "longest_text_bytes", None) or 0)
        for each in encoders
    )


def _check_memory(models: Sequence[FleetModel], memory: int) -> None:
    """Raise DeployError `invalid_parameter` for a model that would never fit beside the pinned ones."""
    pinned = sum(model.bytes for model in models if model.pinned)
    for model in models:
        others = pinned - model.bytes if model.pinned else pinned
        if model.bytes + others > memory:
            beside = f" beside pinned models of {format_size(others)}" if others else ""
            raise invalid(
                f"{model.name} needs about {format_size(model.bytes)}{beside}, and there are {format_size(memory)} for"
                " all models; raise --memory, or lower --kv-cache-tokens."
            )
