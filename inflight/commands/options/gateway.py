"""Options of the gateway, shared by `serve` and `gateway`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click

from inflight.commands.option_sections import Decorated, section
from inflight.commands.options.numbers import Seconds
from inflight.gateway.settings import DEFAULT_PORT, GatewaySettings


def gateway_options(host_option: str) -> Callable[[Decorated], Decorated]:
    """Add the options; `gateway_settings` reads them."""

    return section(
        "OpenAI-compatible API",
        click.option(
            host_option,
            default="127.0.0.1",
            show_default=True,
            help="Address of the gateway; others than loopback need an API key (`inflight key add`).",
        ),
        click.option(
            "--port",
            type=click.IntRange(0, 65535),
            default=DEFAULT_PORT,
            show_default=True,
            help="Port of the gateway; 0: any free port.",
        ),
        click.option("--key-file", type=click.Path(), help="API keys.  [default: ~/.config/inflight/keys.json]"),
        click.option(
            "--tool-call-parser",
            type=click.Choice(("hermes", "llama3_json", "mistral", "none")),
            help="Format in which the model calls tools.  [default: by the chat template]",
        ),
        click.option(
            "--reasoning-parser",
            type=click.Choice(("think", "none")),
            help="How reasoning is marked.  [default: by the chat template]",
        ),
        click.option(
            "--max-in-flight",
            type=click.IntRange(1),
            help="Answers in flight; more requests wait.  [default: twice what the engine runs at once]",
        ),
        click.option(
            "--max-waiting",
            type=click.IntRange(0),
            default=1000,
            show_default=True,
            help="Requests that wait for a place, tenants taking turns; more are refused with 429.",
        ),
        click.option(
            "--max-connections",
            type=click.IntRange(1),
            default=8192,
            show_default=True,
            help="Open connections; a new one takes the place of one that has long been idle.",
        ),
        click.option(
            "--default-max-tokens",
            type=click.IntRange(1),
            default=1024,
            show_default=True,
            help="Longest answer if a chat request sets no max_tokens.",
        ),
        click.option(
            "--generation-config",
            type=click.Choice(("model", "ignore")),
            default="model",
            show_default=True,
            help="How answers are sampled if a request does not say: as the model's generation_config.json says, "
            "or as OpenAI's API does (temperature 1).",
        ),
        click.option(
            "--request-timeout",
            type=Seconds(exclusive=True),
            default=600.0,
            show_default=True,
            help="Seconds for a whole answer.",
        ),
        click.option("--state-dir", type=click.Path(), help="Directory of uploaded files and batches."),
        click.option(
            "--max-stored-bytes",
            type=click.IntRange(1),
            default=20_000_000_000,
            show_default=True,
            help="Size of the uploaded files of all tenants; more are refused with 507.",
        ),
        click.option(
            "--max-tenant-bytes",
            type=click.IntRange(1),
            default=5_000_000_000,
            show_default=True,
            help="Size of the uploaded files of one tenant.",
        ),
        click.option(
            "--cors-origin",
            multiple=True,
            help="Origin whose pages may call the gateway from a browser (repeatable).",
        ),
        click.option("--tls-certificate", type=click.Path(), help="Certificate (PEM) of the gateway, for HTTPS."),
        click.option("--tls-key", type=click.Path(), help="Private key (PEM) of the certificate."),
        click.option(
            "--workers",
            type=click.IntRange(1, 64),
            default=1,
            show_default=True,
            help="Processes of the gateway; each admits its share of --max-in-flight and --max-waiting.",
        ),
        click.option("--log-requests", is_flag=True, help="Write a line of JSON for each request to stderr."),
        click.option(
            "--otlp-endpoint",
            metavar="URL",
            help="Collector (OpenTelemetry) of spans of requests.  [default: $OTEL_EXPORTER_OTLP_ENDPOINT]",
        ),
    )


def gateway_settings(options: dict[str, Any], servers: tuple[str, ...], host: str, **more: Any) -> GatewaySettings:
    """Return the settings; the options of `gateway_options` but the host are removed from `options`."""
    others = ("servers", "host", "served_model_name", *more)
    names = [field.name for field in fields(GatewaySettings) if field.name in options and field.name not in others]
    values = {name: options.pop(name) for name in names}
    values["otlp_endpoint"] = values["otlp_endpoint"] or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None
    return GatewaySettings(servers, host=host, cors_origins=tuple(options.pop("cors_origin")), **values, **more)
