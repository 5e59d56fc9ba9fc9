"""A real Triton with the scripted models `embedding`, `rerank` and `classify` (scripted_encoder.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from inflight_client.encoder_call import MODELS

from inflight.deploy.server.run_directory import ServerRunDirectory
from tests.client.support import scripted_encoder
from tests.standins.scripted_encoders.server import write_encoder
from tests.standins.triton import serve_repository


class EncoderServer(NamedTuple):
    """Where it listens."""

    grpc_address: str
    http_address: str
    metrics_address: str


@contextmanager
def encoder_server() -> Iterator[EncoderServer]:
    run = ServerRunDirectory.create()
    try:
        for task, name in MODELS.items():
            write_encoder(run.path / "repository" / name, task, task, Path(scripted_encoder.__file__))
        with serve_repository(run, "scripted") as ports:
            yield EncoderServer(*(f"127.0.0.1:{port}" for port in (ports.grpc, ports.http, ports.metrics)))
    finally:
        run.close()
