"""The status of a server, from one set of queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeVar

from inflight_client._compat.deployment import Deployment
from inflight_client._compat.encoder_detection import EncoderDeployment
from inflight_client._compat.model_config import ModelConfig
from inflight_client._sync.connection import Connection
from inflight_client.deadline import Deadline
from inflight_client.engine_load import EngineLoad
from inflight_client.errors import InflightError
from inflight_client.results import Health, Model
from inflight_client.settings import ClientSettings
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
        found = (version_mismatch(version), self.engine.mismatch(version) if self.engine else "")
        return "; ".join(sentence for sentence in found if sentence)

    def as_dict(self) -> dict[str, Any]:
        """Return the report in a form for JSON."""
        found = self.deployment
        return {
            "server": self.address,
            "ready": bool(self.health),
            "health": asdict(self.health),
            "server_metadata": self.server,
            "deployment": None
            if found is None
            else {
                "kind": found.kind,
                "model": found.model,
                "served_model": found.served.get("model"),
                "sampling": found.served.get("sampling"),
                "notes": found.served.get("notes"),
                "version": found.version,
                "engine": self.engine.name if self.engine else None,
                "engine_version": (self.engine.version or None) if self.engine else None,
            },
            "encoders": [
                {"task": one.task, "model": one.model, "ready": one.ready, "version": one.version}
                | {"served_model": one.served.get("model"), "dimensions": one.dimensions}
                | {"max_seq_len": one.served.get("max_seq_len")}
                for one in self.encoders
            ],
            "models": [asdict(model) for model in self.models],
            "load": None if self.load is None else {**self.load.as_dict(), "tokens_per_second": self.tokens_per_second},
            "warning": self.warning or None,
            "failures": list(self.failures),
        }


class ServerInspector:
    """Queries a server, each query within `seconds`; a failed query is reported and the others still run."""

    def __init__(self, connection: Connection, settings: ClientSettings, seconds: float) -> None:
        self._connection = connection
        self._settings = settings
        self._seconds = seconds
        self._failures: list[str] = []

    def report(self) -> ServerReport:
        """Run all queries and return the report."""
        self._failures = []
        self._connection.invalidate()  # another deployment may be at this address by now
        address = self._settings.address.url
        health = self._connection.health(self._deadline())
        if not health.live:
            return ServerReport(address, health)
        transport = self._connection.transport
        server = self._query(transport.server)
        # If no model is ready, `health` has the reason already.
        # A gateway lists its encoders with its models.
        encoders = None if self._settings.address.openai else self._query(self._connection.find_encoders)
        deployment = self._query(self._find_deployment(bool(encoders))) if health.model_ready else None
        models = self._query(self._connection.models)
        engine = self._query(self._engine) if deployment else None
        return ServerReport(
            address,
            health,
            server=f"{server.name} {server.version}" if server else None,
            deployment=deployment,
            engine=engine,
            encoders=encoders or (),
            models=tuple(models or ()),
            load=self._query(self._load),
            failures=tuple(self._failures),
        )

    def _deadline(self) -> Deadline:
        return Deadline(self._seconds)

    def _find_deployment(self, has_encoders: bool) -> Callable[[Deadline], Deployment | None]:
        """Return a query for the model that generates, which a server with encoders may lack."""

        def find(deadline: Deadline) -> Deployment | None:
            try:
                return self._connection.find_deployment(deadline)
            except InflightError as error:
                if has_encoders and error.code == "unsupported_deployment":
                    return None
                raise

        return find

    def _load(self, deadline: Deadline) -> EngineLoad:
        return EngineLoad.from_metrics(self._connection.metrics(deadline))

    def _query(self, question: Callable[[Deadline], Result]) -> Result | None:
        try:
            return question(self._deadline())
        except InflightError as error:
            self._failures.append(f"{error} [{error.code}]")
            return None

    def _engine(self, deadline: Deadline) -> EngineIdentity | None:
        """Return what runs behind the model; None if the configuration does not say."""
        model = self._connection.find_deployment(deadline).model
        try:
            config = self._connection.transport.config(ENGINE_MODEL, deadline)
        except InflightError as error:
            if error.code != "model_not_found":
                raise
            config = self._connection.transport.config(model, deadline)
        model_config = ModelConfig(config)
        name = model_config.parameter("inflight_engine") or str(config.get("backend", ""))
        return EngineIdentity(name, model_config.parameter("inflight_engine_version")) if name else None
