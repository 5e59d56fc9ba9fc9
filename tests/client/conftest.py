"""A server that only the client's tests need; it ends with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from inflight_client import Client

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.client.support.expected_answers import PREFILL_SECONDS_PER_TOKEN
from tests.client.support.gated_server import AnswerGate
from tests.client.support.scripted_server import serving
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import STEP_SECONDS, fake_engine


@pytest.fixture(scope="package")
def slow_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    """The fake engine with a step every STEP_SECONDS, and first tokens that take time; shared, so none may harm it."""
    engine = fake_engine(step_seconds=STEP_SECONDS, prefill_seconds_per_token=PREFILL_SECONDS_PER_TOKEN)
    with shared_server(tiny_engine("llama"), DeploymentOptions(parameters=engine)) as running:
        yield running


@pytest.fixture
def held() -> Iterator[AnswerGate]:
    """What the server of `held_address` answers."""
    script = AnswerGate()
    yield script
    script.go.set()


@pytest.fixture
def held_address(held: AnswerGate) -> Iterator[str]:
    with serving(held) as (_, address):
        yield address


@pytest.fixture
def held_client(held_address: str) -> Iterator[Client]:
    with Client(held_address) as client:
        yield client
