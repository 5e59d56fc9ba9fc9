"""The status of a server, from one set of queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from inflight_client import Client, Deployment, EncoderDeployment, Health, InflightError, Model
from inflight_client.engine_load import EngineLoad
from inflight_client.versions import version_mismatch

from inflight import compatible

ENGINE_MODEL = "tensorrt_llm"
"""Upstream's name for the engine's model; deployments with a single model of another name differ."""

Result = TypeVar("Result")


class EngineIdentity(NamedTuple):
    """The name and version of what runs the model: our engine, or Triton's backend."""

    name: str
    version: str

    def mismatch(self, deployed_by: str | None) -> str:
        """Return a sentence if the engine's version does not match the server's; empty if it does or is unknown."""
        if not (self.version and deployed_by) or compatible(self.version, deployed_by):
            return ""
        return (
            f"the engine was built by inflight {self.version}, and the server was deployed by {deployed_by}, which "
            f"may be incompatible; rebuild the engine"
        )


@dataclass(frozen=True)
class ServerReport:
    """What a server reported about itself; None for what it does not report or could not be queried.

    `failures` are sentences about the queries that failed.
    """

    address: str
    health: Health
    server: str | None = None
    deployment: Deployment | None = None
    engine: EngineIdentity | None = None
    encoders: tuple[EncoderDeployment, ...] = ()
    models: tuple[Model, ...] = ()
    load: EngineLoad | None = None
    tokens_per_second: float | None = None
    failures: tuple[str, ...] = ()

    @property
    def warning(self) -> str:
        """A sentence about the versions that do not match; empty if all do."""
        if self.deployment is None:
            return ""
        version = self.deployment.version
        mismatches = (version_mismatch(version), self.engine.mismatch(version) if self.engine else "")
        return "; ".join(sentence for sentence in mismatches if sentence)

    def as_dict(self) -> dict[str, Any]:
        """Return the report in a form for JSON."""
        deployment = self.deployment
        return {
            "server": self.address,
            "ready": bool(self.health),
            "health": asdict(self.health),
            "server_metadata": self.server,
            "deployment": None
            if deployment is None
            else {
                "kind": deployment.kind,
                "model": deployment.model,
                "served_model": deployment.served.get("model"),
                "sampling": deployment.served.get("sampling"),
                "notes": deployment.served.get("notes"),
                "reproducible": bool(deployment.served.get("reproducible")),
                "version": deployment.version,
                "engine": self.engine.name if self.engine else None,
                "engine_version": (self.engine.version or None) if self.engine else None,
            },
            "encoders": [
                {"task": encoder.task, "model": encoder.model, "ready": encoder.ready, "version": encoder.version}
                | {"served_model": encoder.served.get("model"), "dimensions": encoder.dimensions}
                | {"max_seq_len": encoder.served.get("max_seq_len")}
                for encoder in self.encoders
            ],
            "models": [asdict(model) for model in self.models],
            "load": None if self.load is None else {**self.load.as_dict(), "tokens_per_second": self.tokens_per_second},
            "warning": self.warning or None,
            "failures": list(self.failures),
        }


def inspect_server(client: Client, seconds: float) -> ServerReport:
    """Query a server, each query within `seconds`; a failed query is reported and the others still run."""
    failures: list[str] = []

    def query(question: Callable[[float], Result], ignored: str = "") -> Result | None:
        try:
            return question(seconds)
        except InflightError as error:
            if error.code != ignored:
                failures.append(f"{error} [{error.code}]")
            return None

    client.refresh()  # another deployment may be at this address by now
    health = client.health(seconds)
    if not health.live:
        return ServerReport(client.address.url, health)
    server = query(client.server)
    # If no model is ready, `health` has the reason already.
    # A gateway lists its encoders with its models.
    encoders = None if client.address.openai else query(client.encoders)
    # A server with encoders may lack a model that generates.
    lacking = "unsupported_deployment" if encoders else ""
    deployment = query(client.deployment, lacking) if health.model_ready else None
    models = query(client.models)
    engine = query(partial(_engine, client, deployment.model)) if deployment else None
    page = query(client.metrics)
    return ServerReport(
        client.address.url,
        health,
        server=f"{server.name} {server.version}" if server else None,
        deployment=deployment,
        engine=engine,
        encoders=encoders or (),
        models=tuple(models or ()),
        load=EngineLoad.from_metrics(page) if page else None,
        failures=tuple(failures),
    )


def _engine(client: Client, model: str, seconds: float) -> EngineIdentity | None:
    """Return what runs behind the model; None if the configuration does not say."""
    try:
        config = client.model_config(ENGINE_MODEL, seconds)
    except InflightError as error:
        if error.code != "model_not_found":
            raise
        config = client.model_config(model, seconds)
    name = config.parameter("inflight_engine") or config.backend
    return EngineIdentity(name, config.parameter("inflight_engine_version")) if name else None
