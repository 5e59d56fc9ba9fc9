"""`inflight serve`: serve a model with Triton until a signal, after building its engine if there is none."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click

from build_engines.atomic_directory import in_use
from build_engines.plan.size import format_size
from inflight.commands.fleet import FleetOptions, fleet_options, make_fleet
from inflight.commands.models.argument import kind_of
from inflight.commands.option_sections import SectionedCommand, section
from inflight.commands.options.config_file import config_option
from inflight.commands.options.deployment import deployment_options, deployment_options_from
from inflight.commands.options.engine import (
    PRECISION_HELP,
    check_precision,
    precision_option,
    revision_option,
    target_option,
)
from inflight.commands.options.gateway import gateway_options, gateway_settings
from inflight.commands.options.numbers import Seconds
from inflight.commands.options.quiet import quiet_option
from inflight.commands.serve_signals import ServeSignals, StartInterrupted
from inflight.commands.terminal.build_progress import show_build_progress
from inflight.commands.terminal.standard_streams import print_message
from inflight.deploy.fleet.fleet import Fleet
from inflight.deploy.repository.engine_set import verify_encoder_for
from inflight.deploy.repository.model_names import BatchedTask
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.server.grpc_tls import GrpcTls
from inflight.deploy.server.process_layout import MULTI_GPU_MODES
from inflight.deploy.server.server import Server, ServerSettings
from inflight.gateway.processes import GatewayProcesses
from inflight.gateway.settings import GatewaySettings

_HTTP_PORT = 8000
"""Of Triton without the gateway."""


@click.command(cls=SectionedCommand, short_help="Serve a model, a checkpoint or an engine on Triton.")
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@section(
    "Model",
    config_option({"engine": "models"}),
    target_option(),
    precision_option(PRECISION_HELP),
    revision_option(),
)
@section(
    "OpenAI-compatible API",
    click.option(
        "--gateway/--no-gateway", default=True, help="Start the OpenAI-compatible API beside Triton.  [default: on]"
    ),
)
@gateway_options("--gateway-host")
@fleet_options()
@deployment_options("serve")
@section(
    "Triton's own ports",
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all."),
    click.option("--http-host", help="Address for HTTP.  [default: --host, or 127.0.0.1 with --grpc-tls-ca]"),
    click.option("--metrics-host", help="Address for metrics.  [default: --host, or 127.0.0.1 with --grpc-tls-ca]"),
    click.option(
        "--behind-proxy",
        is_flag=True,
        help="Confirm that a proxy or gateway checks requests from other machines; required for addresses other than "
        "loopback.",
    ),
    click.option(
        "--http-port",
        type=click.IntRange(0, 65535),
        help="Port of Triton's own HTTP API; 0: any free port.  [default: 8000; with the gateway any free port, since "
        "web pages of any origin could use a known one]",
    ),
    click.option(
        "--grpc-port", type=click.IntRange(0, 65535), default=8001, show_default=True, help="0: any free port."
    ),
    click.option(
        "--metrics-port", type=click.IntRange(0, 65535), default=8002, show_default=True, help="0: any free port."
    ),
    click.option("--grpc-tls-certificate", type=click.Path(path_type=Path), help="TLS certificate for gRPC."),
    click.option("--grpc-tls-key", type=click.Path(path_type=Path), help="Private key of the certificate."),
    click.option(
        "--grpc-tls-ca",
        type=click.Path(path_type=Path),
        help="Accept only clients with a certificate signed by these CAs.",
    ),
)
@section(
    "GPU only",
    click.option(
        "--multi-gpu",
        type=click.Choice(MULTI_GPU_MODES),
        help="How to start the ranks of a multi-GPU engine. leader: each as a server, of which the first one serves. "
        "orchestrator: as workers of one server, which can have several instances (--set gpu_device_ids=0,1;2,3).  "
        "[default: leader]",
    ),
)
@section(
    "Output and lifetime",
    click.option(
        "--request-log",
        type=click.Path(path_type=Path),
        help="Append one JSON line per answer to this file: request id, tenant, tokens, times; no prompts or answers.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON."),
    quiet_option,
    click.option("--verbose", is_flag=True, help="Show all of Triton's log, not only warnings and errors."),
    click.option(
        "--drain-seconds",
        type=Seconds(),
        default=30.0,
        show_default=True,
        help="Time for running requests to finish after SIGTERM, in seconds.",
    ),
    click.option(
        "--start-timeout", type=Seconds(1), default=900.0, show_default=True, help="Startup timeout, in seconds."
    ),
)
def command(
    models: tuple[str, ...],
    target: str | None,
    precision: str | None,
    revision: str | None,
    drain_seconds: float,
    as_json: bool,
    quiet: bool,
    grpc_tls_certificate: Path | None,
    grpc_tls_key: Path | None,
    grpc_tls_ca: Path | None,
    gateway: bool,
    gateway_host: str,
    memory: int | None,
    pin: tuple[str, ...],
    idle_unload: float | None,
    min_residence: float,
    **options: Any,
) -> None:
    """Serve MODEL on NVIDIA Triton Inference Server until SIGTERM or Ctrl-C.

    MODEL is an engine directory; a checkpoint's directory or a name of the Hugging Face hub (owner/name), for which an
    engine is built into the cache unless it is there (see `inflight list`); or a repository that `inflight assemble`
    wrote: its directory, or its address on S3. --target, --precision and --revision are for checkpoints and names.
    MODEL may be one that generates text, or an encoder: one that embeds, reranks or classifies texts. --embed, --rerank
    and --classify name encoders to serve in the same server, also without MODEL.

    Several MODELs that generate share --memory: each has a server of its own behind one gateway, which is started when
    a request names the model, and the least recently used one is unloaded if there is no room (docs/several-models.md).

    The addresses are printed once each model has answered a request. After SIGTERM or Ctrl-C, running requests finish
    and new ones are refused; a second signal stops at once. A process of the server that dies is restarted.

    --config reads options from a file, and MODEL as `engine`; the command line and environment variables have
    priority.

    Triton supports TLS only on its gRPC port (PEM files); for HTTPS, put a proxy in front of the HTTP port.

    \b
      inflight serve Qwen/Qwen2.5-0.5B-Instruct
      inflight serve ./my-checkpoint --precision int8 --served-model-name tea
      inflight serve my-engine --max-queue-size 256
      inflight serve my-engine --draft-engine my-small-engine --num-draft-tokens 6
      inflight serve my-engine --lora formal.safetensors --lora brief.safetensors
      inflight serve my-gpu-engine --set kv_cache_free_gpu_mem_fraction=0.8 --multi-gpu leader
      inflight serve my-engine --grpc-tls-certificate server.pem --grpc-tls-key server.key
      inflight serve my-engine --embed my-embedder --rerank my-reranker
      inflight serve small big --memory 16GiB --pin small --idle-unload 10m
      inflight serve my-embedder --encoder-max-wait-ms 20
      inflight serve my-engine --request-log requests.jsonl
      inflight serve s3://models/my-model/v1
      inflight serve --config serve.yaml
    """  # fmt: skip
    of_server = {field.name: options.pop(field.name) for field in fields(ServerSettings) if field.name in options}
    tls = GrpcTls.from_options(grpc_tls_certificate, grpc_tls_key, grpc_tls_ca)
    settings = ServerSettings(grpc_tls=tls, **of_server)
    of_gateway = gateway_settings(options, (), gateway_host, drain_seconds=drain_seconds)
    has_gateway = gateway and grpc_tls_certificate is None
    if settings.http_port is None:
        settings = replace(settings, http_port=0 if has_gateway else _HTTP_PORT)
    deployment = replace(deployment_options_from(options), generation_config=of_gateway.generation_config)
    named = {"target": target, "precision": precision, "revision": revision}
    build = {name: value for name, value in named.items() if value is not None}
    if not models and not deployment.encoders.directories():
        raise click.UsageError("Missing argument 'MODEL'; name what to serve.")
    of_fleet = FleetOptions(memory, pin, idle_unload, min_residence)
    if len(models) < 2 and (memory or pin or idle_unload is not None):
        raise click.UsageError(
            "--memory, --pin and --idle-unload are for several MODELs; name them, or leave the options out."
        )
    if len(models) > 1 and not has_gateway:
        raise click.UsageError(
            "Several MODELs need the gateway; leave --no-gateway and --grpc-tls-certificate out, or name one MODEL."
        )
    try:
        with ServeSignals() as signals, ExitStack() as held:
            front = _gateway(of_gateway, grpc_tls_certificate) if gateway else None
            if front is not None:
                held.callback(front.stop)
            first = models[0] if models else None
            engine, built = held.enter_context(_engines(first, dict(build), deployment, settings, quiet))
            serving: Server | Fleet
            if len(models) > 1:
                others = [held.enter_context(_engine(each, dict(build), settings, quiet)) for each in models[1:]]
                engines = list(zip(models, (engine, *others), strict=True))
                serving = make_fleet(engines, built, settings, of_fleet, drain_seconds)
            else:
                serving = Server(engine, built, settings, on_message=print_message)
            what = ", ".join(models) or str(engine)
            _serve(serving, what, front, signals, drain_seconds, as_json, quiet)
    except StartInterrupted:
        print_message("Stopped before the server was ready.")


@contextmanager
def _engines(
    model: str | None, build: dict[str, str], options: DeploymentOptions, settings: ServerSettings, quiet: bool
) -> Iterator[tuple[str | Path, DeploymentOptions]]:
    """Yield what to serve, MODEL or the first encoder, and the options with the engines of the others."""
    with ExitStack() as held:
        engine = None if model is None else held.enter_context(_engine(model, build, settings, quiet))
        others: dict[BatchedTask, Path] = {}
        for task, named in options.encoders.directories().items():
            own = build if engine is None else {}
            encoder = Path(held.enter_context(_engine(str(named), {**own, "task": task}, settings, quiet)))
            if engine is None:
                verify_encoder_for(task, encoder)
                engine = encoder
            else:
                others[task] = encoder
        assert engine is not None
        yield engine, replace(options, encoders=options.encoders.with_directories(others))


@contextmanager
def _engine(model: str, build: dict[str, str], settings: ServerSettings, quiet: bool) -> Iterator[str | Path]:
    """Yield what to serve for an argument, which can't be replaced or removed inside the block."""
    if kind_of(model) == "deployable":
        if wrong := build.keys() - {"task"}:
            raise click.UsageError(
                f"--{min(wrong)} is for a checkpoint or a model's name, and {model} is built already; leave it out."
            )
        with in_use(Path(model)):
            yield model
        return
    from build_engines.model_cache.cache import ModelCache
    from build_engines.model_cache.obtain import obtain_engine
    from build_engines.target import BuildOptions

    revision = build.pop("revision", None)
    chosen = BuildOptions(**build)  # type: ignore[arg-type]  # click has checked the choices
    check_precision(chosen)
    # Before minutes of building; the server checks both again.
    settings.check()
    with settings.reserved_ports():
        pass
    with ExitStack() as held:
        with show_build_progress(quiet) as progress:
            entry = held.enter_context(obtain_engine(ModelCache.default(), model, chosen, progress, revision))
        yield entry.engine


def _serve(
    serving: Server | Fleet,
    what: str,
    front: GatewayProcesses | None,
    signals: ServeSignals,
    drain_seconds: float,
    as_json: bool,
    quiet: bool,
) -> None:
    """Serve until a signal. Raises StartInterrupted."""
    try:
        if not (as_json or quiet):
            print_message(f"Checking {what} and starting Triton ...")
        serving.start()
        signals.starting = False
        if front is not None:
            front.start(serving.addresses, serving.socket)
        if not quiet:
            for manifest in serving.manifests:
                for note in manifest.notes:
                    print_message(f"Note: {manifest.name}: {note}")
        if as_json or not quiet:
            _announce(serving, front, as_json)
        while not signals.drain_requested.wait(0.2) and not serving.wait(0):
            pass
    finally:
        signals.starting = False
        if signals.drain_requested.is_set() and serving.ready and not quiet:
            print_message(
                f"Stopping; running requests have {drain_seconds:g} s to finish. Press Ctrl-C again to stop at once."
            )
        seconds = drain_seconds if signals.drain_requested.is_set() else 0
        if front is not None:
            front.stop(seconds, signals.force_requested.is_set)
        if not serving.stop(seconds, signals.force_requested.is_set):
            print_message("Stopped before all requests had ended.")


def _gateway(settings: GatewaySettings, certificate: Path | None) -> GatewayProcesses | None:
    """Return the gateway with its port taken. Raises InflightError."""
    if certificate is not None:
        print_message("The gateway is not started: with --grpc-tls-certificate, run `inflight gateway` beside it.")
        return None
    settings.check()
    gateway = GatewayProcesses(settings, print_message)
    gateway.bind()
    return gateway


def _announce(serving: Server | Fleet, gateway: GatewayProcesses | None, as_json: bool) -> None:
    openai = {"openai": gateway.url} if gateway else {}
    if as_json:
        click.echo(json.dumps((_of_fleet(serving) if isinstance(serving, Fleet) else _of_server(serving)) | openai))
    else:
        if gateway is not None:
            click.echo(gateway.announcement)
        if isinstance(serving, Fleet):
            size = format_size(serving.limits.memory)
            click.echo(f"Serving {', '.join(serving.models)} in {size}: each is loaded for its requests. Ctrl-C stops.")
        else:
            cache = f"; KV cache of {serving.kv_cache_tokens:,} tokens" if serving.kv_cache_tokens else ""
            click.echo(
                f"Serving {_models(serving)}: HTTP {serving.http_address}, gRPC {serving.grpc_address},"
                f" metrics {serving.metrics_address}{cache}. Ctrl-C stops."
            )
    sys.stdout.flush()


def _of_server(server: Server) -> dict[str, Any]:
    return {
        "pid": server.pid,
        "http": server.http_address,
        "grpc": server.grpc_address,
        "metrics": server.metrics_address,
        "model": server.model_name,
        "models": server.engines.model_names,
        "kv_cache_tokens": server.kv_cache_tokens,
    }


def _of_fleet(fleet: Fleet) -> dict[str, Any]:
    models = [
        {
            "model": model.name,
            "pinned": model.pinned,
            "memory_bytes": model.bytes,
            "kv_cache_tokens": model.options.kv_cache_tokens,
            "http": model.settings.http_port,
            "grpc": model.settings.grpc_port,
            "metrics": model.settings.metrics_port,
        }
        for model in fleet.models.values()
    ]
    return {"models": models, "memory_bytes": fleet.limits.memory}


def _models(server: Server) -> str:
    """Return the models' names, those of encoders with their task."""
    names = server.engines.model_names
    return " and ".join(name if task == "generate" else f"{name} ({task})" for task, name in names.items())
