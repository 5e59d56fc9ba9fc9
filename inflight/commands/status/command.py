"""`inflight status`: show the status of a server."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import click
from inflight_client import Client, EncoderDeployment, VersionWarning
from inflight_client.engine_load import EngineLoad

from inflight.commands.options.connection import connection_options, open_client
from inflight.commands.options.numbers import Seconds
from inflight.commands.status.report import ServerReport, inspect_server

_RATE_INTERVAL = 0.5
"""Seconds between two readings of a busy engine, from which the token rate is computed."""


@click.command(short_help="Show server status: readiness, models, load.")
@connection_options
@click.option(
    "--metrics-url",
    help="URL of the metrics.  [default: what the server publishes, else port 8002 of the address's host]",
)
@click.option(
    "--timeout", type=Seconds(exclusive=True), default=5.0, show_default=True, help="Timeout of each query, in seconds."
)
@click.option(
    "--watch", type=Seconds(exclusive=True), metavar="SECONDS", help="Refresh at this interval, until Ctrl-C."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object instead of lines; with --watch one per line."
)
def command(metrics_url: str | None, timeout: float, watch: float | None, as_json: bool, **options: Any) -> None:
    """Show the status of a server: whether it is ready, what it serves and how busy it is.

    Exit code 0 if the server and its text model are ready; 1 if not.

    \b
      inflight status
      inflight status --server triton.example:8001 --watch 2
      inflight status --server http://127.0.0.1:8080/v1
      inflight status --json | jq .load.waiting
    """  # fmt: skip
    with open_client(options, metrics_url=metrics_url) as client:
        warnings.simplefilter("ignore", VersionWarning)  # the report tells it in its own words
        report = _inspect(client, timeout)
        _show(report, as_json, watch)
        try:
            while watch is not None:
                time.sleep(watch)
                report = _inspect(client, timeout, report.load)
                _show(report, as_json, watch)
        except KeyboardInterrupt:
            pass  # how --watch ends
    sys.exit(0 if report.health else 1)


def _inspect(client: Client, timeout: float, before: EngineLoad | None = None) -> ServerReport:
    """Inspect the server; twice if it is busy and there is no earlier reading."""
    report = inspect_server(client, timeout)
    if before is None and report.load is not None:
        if not report.load.running:
            return dataclasses.replace(report, tokens_per_second=None if report.load.running is None else 0.0)
        before = report.load
        time.sleep(_RATE_INTERVAL)
        report = inspect_server(client, timeout)
    if before is None or report.load is None:
        return report
    return dataclasses.replace(report, tokens_per_second=report.load.tokens_per_second(before))


def _show(report: ServerReport, as_json: bool, watch: float | None) -> None:
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2 if watch is None else None))
        return
    if watch is not None:
        click.clear()  # does nothing unless standard output is a terminal
    for name, line in _lines(report):
        click.echo(f"{name:<11} {line}")


def _lines(report: ServerReport) -> Iterator[tuple[str, str]]:
    health, load = report.health, report.load
    yield ("ready" if health else "NOT READY"), report.address + (f": {health.reason}" if health.reason else "")
    if report.deployment is not None:
        version = f" {report.deployment.version}" if report.deployment.version else ""
        engine = f", engine {report.engine.name}" if report.engine else ""
        if report.engine is not None and report.engine.version:
            engine += f" built by {report.engine.version}"
        if served := report.deployment.served.get("model"):
            yield "model", str(served)
        if sampling := report.deployment.served.get("sampling"):
            yield "sampling", ", ".join(f"{name} {value}" for name, value in sampling.items()) + " by default"
        for note in report.deployment.served.get("notes", ()):
            yield "note", str(note)
        mode = ", reproducible" if report.deployment.served.get("reproducible") else ""
        yield "deployment", f"{report.deployment.kind}{version}{engine}{mode}; text goes to {report.deployment.model}"
    for encoder in report.encoders:
        yield "encoder", ", ".join(_encoder_facts(encoder))
    if report.server is not None:
        yield "server", report.server
    states = defaultdict(list)
    for model in report.models:
        states[f"{model.state}: {model.reason}" if model.reason else model.state].append(model.name)
    for state, names in states.items():
        yield "models", f"{', '.join(sorted(names))}: {state}"
    if load is not None and (report.deployment is not None or not report.encoders):
        yield from _load_text(load, report.tokens_per_second)
    if report.warning:
        yield "WARNING", report.warning
    for failure in report.failures:
        yield "unknown", failure


def _encoder_facts(encoder: EncoderDeployment) -> Iterator[str]:
    yield f"{encoder.served.get('model', encoder.model)}: {encoder.task}"
    if encoder.task == "embed" and encoder.dimensions is not None:
        yield f"{encoder.dimensions} dimensions"
    tokens = encoder.served.get("max_seq_len")
    if tokens and encoder.task != "transcribe":
        yield f"texts of up to {tokens:,} tokens"
    yield f"texts go to {encoder.model}" if encoder.ready else "not ready"


def _load_text(load: EngineLoad, speed: float | None) -> Iterator[tuple[str, str]]:
    if load.running is None:
        yield "requests", "the metrics do not include the engine"
        return
    places = f" of {load.capacity}" if load.capacity else ""
    waiting = "" if load.waiting is None else f", {load.waiting} waiting"  # a gateway's page does not say
    yield "requests", f"{load.running}{places} in flight{waiting}"
    if load.kv_cache_use is not None:
        size = f" of {load.kv_cache_tokens:,} tokens" if load.kv_cache_tokens else ""
        yield "KV cache", f"{load.kv_cache_use:.0%}{size} reserved"
    if speed is not None:
        yield "speed", f"about {speed:.1f} tokens/s"
