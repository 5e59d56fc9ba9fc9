"""What the crash tests share: a real Triton with the deterministic engine, and job processes that start at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.batch.crash.job_processes import JobProcesses
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import fake_engine

STEP_SECONDS = 0.005


@pytest.fixture(scope="package")
def crash_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    """Quick, and shared, so no test may harm it."""
    with shared_server(
        tiny_engine("llama"), DeploymentOptions(parameters=fake_engine(step_seconds=STEP_SECONDS))
    ) as running:
        yield running


@pytest.fixture(scope="package")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobProcesses]:
    with JobProcesses(tmp_path_factory.mktemp("lives")) as processes:
        yield processes
