"""A client that goes away in mid-stream leaves its place in the engine to the next one, within two steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import pytest

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import fake_engine
from tests.serving.model_replies import MODELS, generate_body, message, prompt_for
from tests.serving.raw_requests import GrpcConnection, events, post

pytestmark = pytest.mark.alone

# So long that a busy machine, too, passes a message on within a step.
STEP_SECONDS = 0.2
PROMPT = "The quick brown fox"


@pytest.fixture(scope="module")
def narrow_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    """The fake engine with places for two, a step every STEP_SECONDS."""
    options = DeploymentOptions(max_num_sequences=2, parameters=fake_engine(step_seconds=STEP_SECONDS))
    with shared_server(tiny_engine("llama"), options) as running:
        yield running


def leave(server: Server, connection: GrpcConnection, model: str, protocol: str) -> float:
    """Close a stream just after its second token, and say when."""
    if protocol == "grpc":
        call = connection.send(message(model, prompt_for(server, model, PROMPT), 500, stream=True))
        call.wait_for(2)
        return call.cancel()
    body = generate_body(server, model, PROMPT, max_tokens=500, stream=True)
    with post(server.http_address, f"/v2/models/{model}/generate_stream", body) as response:
        arriving = events(response)
        for _ in range(2):
            next(arriving)
    return time.monotonic()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_closed_connection_frees_the_place_within_two_steps(narrow_server: Server, model: str, protocol: str) -> None:
    steps = []
    with GrpcConnection(narrow_server.grpc_address) as connection:
        other = connection.text(PROMPT, 2000)
        other.wait_for(1)
        for _ in range(3):
            closed_at = leave(narrow_server, connection, model, protocol)
            first = connection.text(PROMPT, 2).finish()[0]  # it waits for its place
            assert first.error is None
            steps.append((first.at - closed_at) / STEP_SECONDS)
        assert not other.ended.is_set()
        count = len(other.responses)
        other.wait_for(count + 3)
        assert all(response.error is None for response in other.responses)
        other.cancel()
    # The place is free within two steps; the next one's first token takes another, and some time to arrive. A place
    # that came free one step later would make it four.
    assert statistics.median(steps) < 3.5, steps
