"""Options of the gateway, shared by `serve` and `gateway`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click

from inflight.commands.option_sections import Decorated, section
from inflight.commands.options.numbers import Seconds
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.reasoning import REASONING
from inflight.openai_api.tool_calls.formats import FORMATS

_DEFAULTS = {field.name: field.default for field in fields(GatewaySettings)}


def _setting(flag: str, kind: Any, help: str) -> Callable[[Decorated], Decorated]:
    """Return an option with the default of the setting of its name."""
    default = _DEFAULTS[flag.lstrip("-").replace("-", "_")]
    return click.option(flag, type=kind, default=default, show_default=default is not None, help=help)


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
        _setting("--port", click.IntRange(0, 65535), "Port of the gateway; 0: any free port."),
        _setting("--key-file", click.Path(), "API keys.  [default: ~/.config/inflight/keys.json]"),
        _setting("--routes", click.Path(), "Routes: names with targets, canary and shadow (docs/routes.md)."),
        _setting(
            "--tool-call-parser",
            click.Choice((*FORMATS, "none")),
            "Format in which the model calls tools.  [default: by the chat template]",
        ),
        _setting(
            "--reasoning-parser",
            click.Choice((*REASONING, "none")),
            "How reasoning is marked.  [default: by the chat template]",
        ),
        _setting(
            "--max-in-flight",
            click.IntRange(1),
            "Answers in flight; more requests wait.  [default: twice what the engine runs at once]",
        ),
        _setting(
            "--max-waiting",
            click.IntRange(0),
            "Requests that wait for a place, tenants taking turns; more are refused with 429.",
        ),
        _setting(
            "--max-connections",
            click.IntRange(1),
            "Open connections; a new one takes the place of one that has long been idle.",
        ),
        _setting("--max-audio-bytes", click.IntRange(1), "Size of an audio file."),
        _setting("--max-audio-seconds", Seconds(exclusive=True), "Length of an audio file, decoded."),
        _setting("--default-max-tokens", click.IntRange(1), "Longest answer if a chat request sets no max_tokens."),
        _setting(
            "--generation-config",
            click.Choice(("model", "ignore")),
            "How answers are sampled if a request does not say: as the model's generation_config.json says, "
            "or as OpenAI's API does (temperature 1).",
        ),
        _setting("--request-timeout", Seconds(exclusive=True), "Seconds for a whole answer."),
        _setting("--state-dir", click.Path(), "Directory of uploaded files and batches."),
        _setting(
            "--max-stored-bytes",
            click.IntRange(1),
            "Size of the uploaded files of all tenants; more are refused with 507.",
        ),
        _setting("--max-tenant-bytes", click.IntRange(1), "Size of the uploaded files of one tenant."),
        click.option(
            "--cors-origin", multiple=True, help="Origin whose pages may call the gateway from a browser (repeatable)."
        ),
        _setting("--tls-certificate", click.Path(), "Certificate (PEM) of the gateway, for HTTPS."),
        _setting("--tls-key", click.Path(), "Private key (PEM) of the certificate."),
        _setting(
            "--workers",
            click.IntRange(1, 64),
            "Processes of the gateway; each admits its share of --max-in-flight and --max-waiting.",
        ),
        click.option("--log-requests", is_flag=True, help="Write a line of JSON for each request to stderr."),
        _setting("--audit", click.Path(), "File of the audit log: a line for each request (docs/audit.md)."),
        _setting("--audit-max-bytes", click.IntRange(1), "Size of its files; a full one is renamed."),
        _setting("--audit-keep", click.IntRange(1), "Full files that are kept.  [default: all]"),
        click.option("--audit-prompts", is_flag=True, help="Write the prompts into the audit log too."),
        _setting("--cache-max-bytes", click.IntRange(1), "Size of the response cache (docs/response-cache.md)."),
        _setting("--cache-max-age", Seconds(exclusive=True), "Age in seconds at which it forgets an answer."),
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
