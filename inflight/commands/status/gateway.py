"""The status of a gateway: whether it is ready, which models it serves, and how many answers are in flight."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import click
from inflight_client._openai.client import OpenAIClient
from inflight_client.errors import InflightError
from inflight_client.metrics import Metrics

_IN_FLIGHT = "inflight_gateway_answers_in_flight"


@dataclass
class GatewayReport:
    """`ready` is False with a `reason`; values that the gateway does not tell are None."""

    address: str
    ready: bool = False
    reason: str = ""
    version: str | None = None
    models: list[str] = field(default_factory=list)
    in_flight: int | None = None

    def lines(self) -> list[tuple[str, str]]:
        lines = [("ready" if self.ready else "NOT READY", self.address + (f": {self.reason}" if self.reason else ""))]
        if self.models:
            lines.append(("models", ", ".join(self.models)))
        if self.version is not None:
            lines.append(("gateway", self.version))
        if self.in_flight is not None:
            lines.append(("requests", f"{self.in_flight} in flight"))
        return lines


def inspect_gateway(client: OpenAIClient, address: str, timeout: float) -> GatewayReport:
    """Ask a gateway for its status. A failure is in the report."""
    report = GatewayReport(address)
    try:
        client.get("/ready", timeout)
        report.ready = True
    except InflightError as error:
        report.reason = str(error)
        if error.code in ("server_unreachable", "unsupported_deployment"):
            return report
    try:
        report.models = client.models()
        report.version = str(json.loads(client.get("/version", timeout))["version"])
        in_flight = Metrics.parse(client.get("/metrics", timeout).decode()).value(_IN_FLIGHT)
        report.in_flight = None if in_flight is None else int(in_flight)
    except InflightError as error:
        report.ready, report.reason = report.ready and error.code != "permission_denied", str(error)
    return report


def show_gateway(report: GatewayReport, as_json: bool, watch: float | None) -> None:
    if as_json:
        values: dict[str, Any] = asdict(report)
        click.echo(json.dumps(values, indent=2 if watch is None else None))
        return
    if watch is not None:
        click.clear()
    for name, line in report.lines():
        click.echo(f"{name:<11} {line}")
