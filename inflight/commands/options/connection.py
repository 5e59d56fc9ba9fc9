"""Options for the server and the connection to it, shared by the commands that use the client."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from inflight_client import Client, InflightError
from inflight_client.address import Tls, parse_header
from inflight_client.retry import NO_RETRY, Retry
from inflight_client.versions import VersionWarning

from inflight.commands.option_sections import section
from inflight.common.schema.cli_options import Lines

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


connection_options = section(
    "Connection",
    click.option(
        "--server",
        default="127.0.0.1:8001",
        show_default=True,
        help="Server: HOST:PORT for gRPC, a grpc, grpcs, http or https URL, a gateway's URL that ends in /v1, or"
        " openai+URL for another server of OpenAI's protocol.",
    ),
    click.option("--model", help="Name of the model.  [default: the server's model for the task]"),
    click.option(
        "--header",
        type=Lines(),
        metavar="NAME: VALUE",
        multiple=True,
        help="Header for every request (repeatable); in the environment one per line.",
    ),
    click.option("--ca", type=_FILE, help="CA certificates (PEM) to trust instead of the system's."),
    click.option("--certificate", type=_FILE, help="Client certificate (PEM)."),
    click.option("--key", type=_FILE, help="Private key of --certificate (PEM)."),
)
"""Adds the connection options; `open_client` reads them."""


@contextmanager
def open_client(options: dict[str, Any], retry_timeout: float = 0.0, **arguments: Any) -> Iterator[Client]:
    """Yield a client from the options of `connection_options`, which are removed from `options`.

    `arguments` are further ones of the client. Version mismatches are printed as warnings on standard error.
    """
    # At a terminal, do not wait for a missing server unless the user asks for it.
    retry = Retry(timeout=retry_timeout) if retry_timeout else NO_RETRY
    with _print_warnings(), Client(**_connection_arguments(options), retry=retry, **arguments) as client:
        yield client


def _connection_arguments(options: dict[str, Any]) -> dict[str, Any]:
    # gRPC's own log repeats the error less clearly.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    files = {name: options.pop(name) for name in ("ca", "certificate", "key")}
    return {
        "address": options.pop("server"),
        "model": options.pop("model"),
        "headers": dict(map(_header, options.pop("header"))),
        "tls": Tls(**files) if any(files.values()) else None,
    }


def _header(text: str) -> tuple[str, str]:
    try:
        return parse_header(text)
    except InflightError as error:
        raise click.BadParameter(str(error), param_hint="'--header'") from None


@contextmanager
def _print_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("always", VersionWarning)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, VersionWarning):
                click.echo(f"Warning: {message}", err=True)
            else:
                others(message, category, *place, **more)

        warnings.showwarning = show
        yield
