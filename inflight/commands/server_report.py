"""How a server stands, looked up in one go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeVar

from inflight_client.connection import Connection
from inflight_client.deadline import Deadline
from inflight_client.deployment import Deployment
from inflight_client.errors import InflightError
from inflight_client.metrics_page import Metrics, fetch
from inflight_client.model_config import ModelConfig
from inflight_client.results import Health, Model
from inflight_client.settings import Settings
from inflight_client.versions import mismatch

from inflight import compatible
from inflight.commands.engine_load import EngineLoad

ENGINE_MODEL = "tensorrt_llm"
"""The engine's model has upstream's name on every deployment but those whose one model is another."""

Answer = TypeVar("Answer")


class Engine(NamedTuple):
    """What runs behind the model: our name of the engine or Triton's of the backend, and who built it."""

    name: str
    version: str

    def mismatch(self, deployed_by: str | None) -> str:
        """In a sentence that the server is of a version which doesn't fit; empty where it does, or none is told."""
        if not (self.version and deployed_by) or compatible(self.version, deployed_by):
            return ""
        return (
            f"the engine was built by inflight {self.version}, and the server was deployed by {deployed_by}, which may"
            " not fit; build the engine again"
        )


@dataclass(frozen=True)
class ServerReport:
    """What a server said of itself; None for what it doesn't tell, or could not be asked.

    `failures` are sentences about what could not be looked up.
    """

    address: str
    health: Health
    server: str | None = None
    deployment: Deployment | None = None
    engine: Engine | None = None
    models: tuple[Model, ...] = ()
    load: EngineLoad | None = None
    tokens_per_second: float | None = None
    failures: tuple[str, ...] = ()

    @property
    def warning(self) -> str:
        """Which versions don't fit, in a sentence; empty where all do."""
        if self.deployment is None:
            return ""
        version = self.deployment.version
        found = (mismatch(version), self.engine.mismatch(version) if self.engine else "")
        return "; ".join(sentence for sentence in found if sentence)

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        found = self.deployment
        return {
            "address": self.address,
            "ready": bool(self.health),
            "health": asdict(self.health),
            "server": self.server,
            "deployment": None
            if found is None
            else {
                "kind": found.kind,
                "model": found.model,
                "version": found.version,
                "engine": self.engine.name if self.engine else None,
                "engine_version": (self.engine.version or None) if self.engine else None,
            },
            "models": [asdict(model) for model in self.models],
            "load": None
            if self.load is None
            else {**self.load.as_object(), "tokens_per_second": self.tokens_per_second},
            "warning": self.warning or None,
            "failures": list(self.failures),
        }


class Inquiry:
    """Asks a server, `seconds` for each question; what fails is told and keeps nothing else from being asked."""

    def __init__(self, connection: Connection, settings: Settings, seconds: float) -> None:
        self._connection = connection
        self._settings = settings
        self._seconds = seconds
        self._failures: list[str] = []

    def report(self) -> ServerReport:
        """Look everything up."""
        self._failures = []
        self._connection.forget()  # another deployment may stand there by now
        address = self._settings.address.url
        health = self._connection.health(self._deadline())
        if not health.live:
            return ServerReport(address, health)
        transport = self._connection.transport
        server = self._asked(transport.server)
        # Without a model that is ready, health has said why already.
        deployment = self._asked(self._connection.find) if health.model_ready else None
        models = self._asked(self._connection.models)
        engine = self._asked(self._engine) if deployment else None
        return ServerReport(
            address,
            health,
            server=f"{server.name} {server.version}" if server else None,
            deployment=deployment,
            engine=engine,
            models=tuple(models or ()),
            load=self._asked(self._load),
            failures=tuple(self._failures),
        )

    def _deadline(self) -> Deadline:
        return Deadline(self._seconds)

    def _load(self, deadline: Deadline) -> EngineLoad:
        return EngineLoad.of(Metrics.parse(fetch(self._settings.metrics_url, deadline, self._settings)))

    def _asked(self, question: Callable[[Deadline], Answer]) -> Answer | None:
        try:
            return question(self._deadline())
        except InflightError as error:
            self._failures.append(f"{error} [{error.code}]")
            return None

    def _engine(self, deadline: Deadline) -> Engine | None:
        """What runs behind the model; None where the configuration doesn't tell."""
        model = self._connection.find(deadline).model
        try:
            config = self._connection.transport.config(ENGINE_MODEL, deadline)
        except InflightError as error:
            if error.code != "model_not_found":
                raise
            config = self._connection.transport.config(model, deadline)
        told = ModelConfig(config)
        name = told.parameter("inflight_engine") or str(config.get("backend", ""))
        return Engine(name, told.parameter("inflight_engine_version")) if name else None
