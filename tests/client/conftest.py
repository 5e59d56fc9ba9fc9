"""A server that only the client's tests need; it ends with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inflight.deploy.repository import DeploymentOptions
from inflight.deploy.server import Server
from tests.client.answers import PREFILL_SECONDS_PER_TOKEN
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import STEP_SECONDS, fake_engine


@pytest.fixture(scope="package")
def slow_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    """The fake engine with a step every STEP_SECONDS, and first tokens that take time; shared, so none may harm it."""
    engine = fake_engine(step_seconds=STEP_SECONDS, prefill_seconds_per_token=PREFILL_SECONDS_PER_TOKEN)
    with Server(tiny_engine("llama"), DeploymentOptions(parameters=engine)) as running:
        yield running
