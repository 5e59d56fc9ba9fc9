"""A stand-in for a server of an LLM in tests: a real Triton that serves the model whose every delay is known."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from inflight.deploy.server import ports
from inflight.deploy.server.run_directory import ServerRunDirectory
from tests.fixtures.waiting import whole_lines
from tests.standins.kserve.repository import text_models
from tests.standins.triton import serve_repository

MODEL = Path(__file__).parent / "model.py"


@dataclass(frozen=True)
class TimedRequest:
    """What the model really did with one request, in seconds of the machine's monotonic clock."""

    prompt: str
    arrived: float
    sent: tuple[float, ...]


@dataclass(frozen=True)
class TimedServer:
    """A running server; its models have the same file and a process each."""

    ports: ports.ListenPorts
    logs: Path

    @property
    def grpc_address(self) -> str:
        return f"127.0.0.1:{self.ports.grpc}"

    @property
    def http_address(self) -> str:
        return f"http://127.0.0.1:{self.ports.http}"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.metrics}/metrics"

    def done(self, model: str) -> list[TimedRequest]:
        """The answers of a model that have ended."""
        lines = whole_lines(self.logs / model)
        return [TimedRequest(**{**values, "sent": tuple(values["sent"])}) for values in lines]


@contextmanager
def timed_server(**models: str) -> Iterator[TimedServer]:
    """Serve models of these names, with the delays given for each, on free ports, until the end."""
    run = ServerRunDirectory.create()
    try:
        for name, delays in models.items():
            _write_model(run.path / "repository" / name, {"log": str(run.path / name), "delays": delays})
        with serve_repository(run, "clockwork") as chosen:
            yield TimedServer(chosen, run.path)
    finally:
        run.close()


def _write_model(folder: Path, parameters: dict[str, str]) -> None:
    said = text_models()["ensemble"].config()
    for name in ("platform", "ensemble_scheduling"):
        said.pop(name)
    said |= {
        "name": folder.name,
        "backend": "python",
        "model_transaction_policy": {"decoupled": True},
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
    }
    config = json_format.ParseDict(said, model_config_pb2.ModelConfig())
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config))
    shutil.copy(MODEL, folder / "1" / "model.py")
