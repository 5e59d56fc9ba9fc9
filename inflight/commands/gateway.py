"""`inflight gateway`: an OpenAI-compatible API in front of Triton servers that run already."""

from __future__ import annotations

import json
import socket
from typing import Any

import click
from inflight_client import Address, InflightError

from inflight.commands.option_sections import SectionedCommand, section
from inflight.commands.options.gateway import gateway_options, gateway_settings
from inflight.commands.options.numbers import Seconds
from inflight.commands.options.quiet import quiet_option
from inflight.commands.serve_signals import ServeSignals
from inflight.commands.terminal.standard_streams import print_message
from inflight.gateway.processes import GatewayProcesses


@click.command(cls=SectionedCommand, short_help="An OpenAI-compatible API in front of Triton servers.")
@section(
    "Servers and model",
    click.option(
        "--server",
        multiple=True,
        default=("127.0.0.1:8001",),
        show_default=True,
        help="Triton server as HOST:PORT (gRPC), or one of OpenAI's protocol as openai+https://HOST/v1?model=NAME&key="
        "VARIABLE (repeatable); requests go to the one with the fewest in flight.",
    ),
    click.option(
        "--tokenizer",
        type=click.Path(),
        help="Checkpoint's directory with tokenizer.json.  [default: that of an engine on this machine]",
    ),
    click.option(
        "--served-model-name", metavar="NAME", help="Name of the model for applications.  [default: the server's]"
    ),
)
@gateway_options("--host")
@section(
    "Output and lifetime",
    click.option("--json", "as_json", is_flag=True, help="Print the address as one line of JSON."),
    quiet_option,
    click.option(
        "--drain-seconds", type=Seconds(), default=30.0, show_default=True, help="Time for open requests to finish."
    ),
)
def command(
    server: tuple[str, ...],
    host: str,
    tokenizer: str | None,
    served_model_name: str | None,
    drain_seconds: float,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Answer OpenAI's HTTP API at /v1 with the models of Triton servers, also of plain tensorrtllm_backend ones.

    \b
      inflight gateway --server gpu1:8001 --server gpu2:8001 --tokenizer ./my-checkpoint
      inflight gateway --routes routes.yaml --server 'openai+https://api.openai.com/v1?model=gpt-4o&key=OPENAI_API_KEY'
      inflight key add my-app && inflight gateway --host 0.0.0.0 --tls-certificate cert.pem --tls-key key.pem
      curl http://127.0.0.1:8080/v1/models
    """  # fmt: skip
    settings = gateway_settings(
        options,
        tuple(server),
        host,
        tokenizer=tokenizer,
        served_model_name=served_model_name,
        drain_seconds=drain_seconds,
    )
    settings.check()
    gateway = GatewayProcesses(settings, print_message)
    gateway.bind()
    with ServeSignals(starting=False) as signals:
        gateway.start()
        try:
            if as_json:
                click.echo(json.dumps({"openai": gateway.url}))
            elif not quiet:
                click.echo(f"{gateway.announcement} In front of {', '.join(server)}. Ctrl-C stops.")
            for address in filter(_is_silent, server):
                print_message(f"No server answers at {address} yet; the gateway takes it once it does.")
            while not signals.drain_requested.wait(1):
                pass
        finally:
            gateway.stop(drain_seconds, signals.force_requested.is_set)


def _is_silent(address: str) -> bool:
    """Return whether nothing listens at the address."""
    try:
        where = Address.parse(address.partition(",metrics=")[0])
        socket.create_connection((where.host, where.port), timeout=1).close()
    except (OSError, InflightError, OverflowError):
        return True
    return False
