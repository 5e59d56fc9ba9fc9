"""A client that goes away in mid-stream leaves its place in the engine to the next one, within two steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import pytest
from tokenizers import Tokenizer

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import fake_engine
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


def grpc_close(server: Server, connection: GrpcConnection, model: str) -> float:
    call = connection.text(PROMPT, 500) if model == "ensemble" else connection.tokens(ids_of(server), 500)
    call.wait_for(2)
    return call.cancel()


def http_close(server: Server, connection: GrpcConnection, model: str) -> float:
    ids = ids_of(server)
    values = {
        "ensemble": {"text_input": PROMPT, "max_tokens": 500, "stream": True},
        "tensorrt_llm": {
            "input_ids": ids,
            "input_lengths": len(ids),
            "request_output_len": 500,
            "streaming": True,
        },
    }[model]
    with post(server.http_address, f"/v2/models/{model}/generate_stream", values) as response:
        arriving = events(response)
        for _ in range(2):
            next(arriving)
    return time.monotonic()


def ids_of(server: Server) -> list[int]:
    ids: list[int] = Tokenizer.from_file(str(server.engine / "tokenizer.json")).encode(PROMPT).ids
    return ids


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm"])
@pytest.mark.parametrize("close", [grpc_close, http_close])
def test_a_closed_connection_frees_the_place_within_two_steps(narrow_server: Server, model: str, close: object) -> None:
    assert callable(close)
    with GrpcConnection(narrow_server.grpc_address) as connection:
        other = connection.text(PROMPT, 2000)
        other.wait_for(1)
        steps = [steps_until_the_next_begins(narrow_server, connection, close, model) for _ in range(3)]
        assert not other.ended.is_set()
        count = len(other.responses)
        other.wait_for(count + 3)
        assert all(response.error is None for response in other.responses)
        other.cancel()
    # The place is free within two steps; the next one's first token takes another, and some time to arrive. A place
    # that came free one step later would make it four.
    assert statistics.median(steps) < 3.5, steps


def steps_until_the_next_begins(server: Server, connection: GrpcConnection, close: object, model: str) -> float:
    """Decode steps from the close of one stream, just after a token, to the first token of one that waits for its
    place."""
    assert callable(close)
    closed_at = close(server, connection, model)
    waiting = connection.text(PROMPT, 2)
    first = waiting.finish()[0]
    assert first.error is None
    return float((first.at - closed_at) / STEP_SECONDS)
