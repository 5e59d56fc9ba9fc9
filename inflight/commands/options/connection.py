"""Which server, and how to get there: the options that `generate`, `chat` and `status` share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from inflight_client import Client, InflightError
from inflight_client._sync.connection import Connection
from inflight_client.address import Tls, parse_header
from inflight_client.retry import NO_RETRY, Retry
from inflight_client.settings import ClientSettings
from inflight_client.versions import VersionWarning

from inflight.common.schema.cli_options import Lines

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def connection_options(function: Decorated) -> Decorated:
    """Decorate a command with the options; it gets them by keyword, for `connected`."""
    options = [
        click.option(
            "--server",
            default="127.0.0.1:8001",
            show_default=True,
            help="The server: HOST:PORT for gRPC, or a URL of grpc, grpcs, http or https.",
        ),
        click.option("--model", help="The model to ask.  [default: the one that the server has]"),
        click.option(
            "--header",
            type=Lines(),
            metavar="NAME: VALUE",
            multiple=True,
            help="Header for every request (repeatable); in the environment one per line.",
        ),
        click.option("--ca", type=_FILE, help="Certificates (PEM) to trust instead of the system's."),
        click.option("--certificate", type=_FILE, help="Certificate (PEM) to show to the server."),
        click.option("--key", type=_FILE, help="The private key of --certificate (PEM)."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@contextmanager
def open_client(asked: dict[str, Any], retry_timeout: float, chat_template: str | None) -> Iterator[Client]:
    """A client by the keywords that `connection_options` gives, which are taken out of `asked`.

    A server whose version doesn't fit is told in a line on standard error.
    """
    # At a terminal nobody wants to wait for a server that isn't there, unless they say so.
    retry = Retry(timeout=retry_timeout) if retry_timeout else NO_RETRY
    with _print_warnings(), Client(**_connection_arguments(asked), retry=retry, chat_template=chat_template) as client:
        yield client


@contextmanager
def connection_settings(asked: dict[str, Any], metrics_url: str | None) -> Iterator[tuple[Connection, ClientSettings]]:
    """The same without a client, to look at the server itself; and how it is reached."""
    settings = ClientSettings.from_arguments(
        **_connection_arguments(asked), timeout=None, chat_template=None, metrics_url=metrics_url
    )
    connection = Connection(settings, NO_RETRY)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VersionWarning)  # who looks at the server says it in its own words
            yield connection, settings
    finally:
        connection.close()


def _connection_arguments(asked: dict[str, Any]) -> dict[str, Any]:
    # gRPC's own log says less clearly what the error says, and beside it.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    files = {name: asked.pop(name) for name in ("ca", "certificate", "key")}
    return {
        "address": asked.pop("server"),
        "model": asked.pop("model"),
        "headers": dict(_header(given) for given in asked.pop("header")),
        "tls": Tls(**files) if any(files.values()) else None,
    }


def _header(given: str) -> tuple[str, str]:
    try:
        return parse_header(given)
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
