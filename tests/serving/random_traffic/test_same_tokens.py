"""Fifty prompts in flight together are answered as transformers answers them, token for token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.fixtures.engines import ARCHITECTURES, DemoEngine, TinyCheckpoint, TinyEngine
from tests.serving.random_traffic.reference import NEW_TOKENS, Reference, references
from tests.serving.raw_requests import GrpcConnection, TimedResponse

TIE = 1e-4
"""Logits nearer than this may change places with the order in which a sum is taken."""

KV_CACHE_TOKENS = 32768
ATTEMPTS = 5
"""To have most prompts in flight at once: a small model may be done with some before a busy machine has sent all."""


@pytest.mark.slow
def test_the_demo_model(demo_checkpoint: Callable[[], Path], demo_engine: DemoEngine) -> None:
    answer_as_transformers_would(demo_checkpoint(), demo_engine("fp32"))


@pytest.mark.parametrize(
    "architecture",
    ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES if name != "llama")],
)
def test_a_tiny_model_of_each_architecture(
    tiny_checkpoint: TinyCheckpoint, tiny_engine: TinyEngine, architecture: str
) -> None:
    answer_as_transformers_would(tiny_checkpoint(architecture), tiny_engine(architecture, "fp32"))


def answer_as_transformers_would(checkpoint: Path, engine: Path) -> None:
    expected = references(checkpoint)
    with Server(engine, DeploymentOptions(kv_cache_tokens=KV_CACHE_TOKENS)) as server:
        for _ in range(ATTEMPTS):
            answers = all_in_flight(server, [one.prompt for one in expected])
            if most_at_once(answers) >= 32:
                break
    assert most_at_once(answers) >= 32
    wrong = [
        f"{len(reference.prompt)} tokens: {difference}"
        for reference, responses in zip(expected, answers, strict=True)
        if (difference := first_difference(reference, responses))
    ]
    assert wrong == []
    # Models that fell into repeating one token would prove little.
    assert sum(len(set(one.tokens)) for one in expected) / len(expected) > 10


def all_in_flight(server: Server, prompts: list[list[int]]) -> list[list[TimedResponse]]:
    with GrpcConnection(server.grpc_address) as connection:
        calls = [connection.tokens(prompt, NEW_TOKENS, end_id=-1) for prompt in prompts]
        return [call.finish(120) for call in calls]


def most_at_once(answers: list[list[TimedResponse]]) -> int:
    """The most streams that had received their first token and not yet their last."""
    moments = [(responses[0].at, 1) for responses in answers] + [(responses[-1].at, -1) for responses in answers]
    running = most = 0
    for _, change in sorted(moments):
        running += change
        most = max(most, running)
    return most


def first_difference(reference: Reference, responses: list[TimedResponse]) -> str | None:
    """What is wrong with an answer, if anything; what follows a tie isn't judged."""
    tokens = [token for response in responses for token in response.token_ids]
    for number, (token, wanted) in enumerate(zip(tokens, reference.tokens, strict=False)):
        if token != wanted:
            lead = reference.leads[number]
            return None if lead < TIE else f"token {number} is {token} and not {wanted}, which leads by {lead:g}"
    if len(tokens) != NEW_TOKENS or responses[-1].finish_reason != "length":
        return f"{len(tokens)} tokens, ended by {responses[-1].finish_reason}"
    return None
