"""`inflight serve`: serve a model with Triton until a signal, after building its engine if there is none."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import FrameType
from typing import Any

import click

from build_engines.atomic_directory import in_use
from build_engines.manifest import EncoderTask
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
from inflight.commands.terminal.build_progress import show_build_progress
from inflight.commands.terminal.standard_streams import print_message
from inflight.deploy.repository.engine_set import verify_encoder_for
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.server.grpc_tls import GrpcTls
from inflight.deploy.server.process_layout import MULTI_GPU_MODES
from inflight.deploy.server.server import Server, ServerSettings
from inflight.gateway.processes import GatewayProcesses
from inflight.gateway.settings import GatewaySettings


class StartInterrupted(BaseException):
    """A signal that arrived before the server was ready. A BaseException, so that no `except Exception` catches it."""


_HTTP_PORT = 8000
"""Of Triton without the gateway."""


class ServeSignals:
    """Handles SIGTERM and SIGINT in its block: the first signal drains the server, the second one stops it at once."""

    def __init__(self) -> None:
        self.drain_requested = threading.Event()
        self.force_requested = threading.Event()
        self.starting = True
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> ServeSignals:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.drain_requested.is_set():
            self.force_requested.set()
        self.drain_requested.set()
        if self.starting:
            self.starting = False
            raise StartInterrupted


@click.command(cls=SectionedCommand, short_help="Serve a model, a checkpoint or an engine on Triton.")
@click.argument("model", required=False)
@section(
    "Model",
    config_option({"engine": "model"}),
    target_option("Target of the engine to build.  [default: openvino]", default=None),
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
    model: str | None,
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
    **options: Any,
) -> None:
    """Serve MODEL on NVIDIA Triton Inference Server until SIGTERM or Ctrl-C.

    MODEL is an engine directory; a checkpoint's directory or a name of the Hugging Face hub (owner/name), for which an
    engine is built into the cache unless it is there (see `inflight list`); or a repository that `inflight assemble`
    wrote: its directory, or its address on S3. --target, --precision and --revision are for checkpoints and names.
    MODEL may be one that generates text, or an encoder: one that embeds, reranks or classifies texts. --embed, --rerank
    and --classify name encoders to serve in the same server, also without MODEL.

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
    if model is None and not deployment.encoders.directories():
        raise click.UsageError("Missing argument 'MODEL'; name what to serve.")
    try:
        with ServeSignals() as signals:
            front = _gateway(of_gateway, grpc_tls_certificate) if gateway else None
            with _engines(model, build, deployment, settings, quiet) as (engine, built):
                server = Server(engine, built, settings, on_message=print_message)
                _serve(server, front, signals, drain_seconds, as_json, quiet)
    except StartInterrupted:
        print_message("Stopped before the server was ready.")


@contextmanager
def _engines(
    model: str | None, build: dict[str, str], options: DeploymentOptions, settings: ServerSettings, quiet: bool
) -> Iterator[tuple[str | Path, DeploymentOptions]]:
    """Yield what to serve, MODEL or the first encoder, and the options with the engines of the others."""
    with ExitStack() as held:
        engine = None if model is None else held.enter_context(_engine(model, build, settings, quiet))
        others: dict[EncoderTask, Path] = {}
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
    settings.choose_ports()
    with ExitStack() as held:
        with show_build_progress(quiet) as progress:
            entry = held.enter_context(obtain_engine(ModelCache.default(), model, chosen, progress, revision))
        yield entry.engine


def _serve(
    server: Server,
    front: GatewayProcesses | None,
    signals: ServeSignals,
    drain_seconds: float,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run the server until a signal. Raises StartInterrupted."""
    try:
        if not (as_json or quiet):
            print_message(f"Checking {server.engine} and starting Triton ...")
        server.start()
        signals.starting = False
        if front is not None:
            front.start((f"{server.grpc_address},metrics=http://{server.metrics_address}/metrics",))
        if not quiet:
            for manifest in server.engines.all:
                for note in manifest.notes:
                    print_message(f"Note: {manifest.name}: {note}")
        if as_json or not quiet:
            _announce(server, front, as_json)
        while not signals.drain_requested.wait(0.2) and not server.wait(0):
            pass
    finally:
        signals.starting = False
        if signals.drain_requested.is_set() and server.ready and not quiet:
            print_message(
                f"Stopping; running requests have {drain_seconds:g} s to finish. Press Ctrl-C again to stop at once."
            )
        if front is not None:
            front.stop(drain_seconds if signals.drain_requested.is_set() else 0, signals.force_requested.is_set)
        if not server.stop(drain_seconds if signals.drain_requested.is_set() else 0, signals.force_requested.is_set):
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


def _announce(server: Server, gateway: GatewayProcesses | None, as_json: bool) -> None:
    if as_json:
        line = {
            "pid": server.pid,
            "http": server.http_address,
            "grpc": server.grpc_address,
            "metrics": server.metrics_address,
            "model": server.model_name,
            "models": server.engines.model_names,
            "kv_cache_tokens": server.kv_cache_tokens,
        } | ({"openai": gateway.url} if gateway else {})
        click.echo(json.dumps(line))
    else:
        cache = f"; KV cache of {server.kv_cache_tokens:,} tokens" if server.kv_cache_tokens else ""
        if gateway is not None:
            click.echo(gateway.announcement)
        click.echo(
            f"Serving {_models(server)}: HTTP {server.http_address}, gRPC {server.grpc_address},"
            f" metrics {server.metrics_address}{cache}. Ctrl-C stops."
        )
    sys.stdout.flush()


def _models(server: Server) -> str:
    """Return the models' names, those of encoders with their task."""
    names = server.engines.model_names
    return " and ".join(name if task == "generate" else f"{name} ({task})" for task, name in names.items())
