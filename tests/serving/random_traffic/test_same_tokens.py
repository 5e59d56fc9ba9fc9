"""Fifty prompts in flight together are answered as transformers answers them, token for token."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.process import ENGINE_PROCESS
from inflight.deploy.server.server import Server
from tests.fixtures.engines import ARCHITECTURES, DemoEngine, TinyCheckpoint, TinyEngine
from tests.serving.metrics_page import MetricsPage, page_of, page_when
from tests.serving.random_traffic.reference import NEW_TOKENS, Reference, references
from tests.serving.raw_requests import GrpcConnection, TimedResponse

TIE = 1e-4
"""Logits nearer than this may change places with the order in which a sum is taken."""

KV_CACHE_TOKENS = 32768
HOLD_SECONDS = (0.2, 0.5, 1, 2, 4)
"""How long the engine is stopped after the prompts are sent, until one attempt has most of them in one batch."""


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
        for hold in HOLD_SECONDS:
            before = page_of(server)
            answers = all_in_flight(server, [one.prompt for one in expected], hold)
            after = page_after(server, before, len(expected))
            per_step = len(expected) * NEW_TOKENS / (after.steps - before.steps)
            if per_step >= 10:
                break
    assert per_step >= 10
    wrong = [
        f"{len(reference.prompt)} tokens: {difference}"
        for reference, responses in zip(expected, answers, strict=True)
        if (difference := first_difference(reference, responses))
    ]
    assert wrong == []
    # Models that fell into repeating one token would prove little.
    assert sum(len(set(one.tokens)) for one in expected) / len(expected) > 10


def all_in_flight(server: Server, prompts: list[list[int]], hold: float) -> list[list[TimedResponse]]:
    """Stop the engine while the prompts are sent: a small model would be done with some before the last is sent."""
    engine = next(member for member in server.instance.process_tree if member.name.startswith(ENGINE_PROCESS))
    with GrpcConnection(server.grpc_address) as connection:
        os.kill(engine.pid, signal.SIGSTOP)
        try:
            calls = [connection.tokens(prompt, NEW_TOKENS, end_id=-1) for prompt in prompts]
            time.sleep(hold)
        finally:
            os.kill(engine.pid, signal.SIGCONT)
        return [call.finish(120) for call in calls]


def page_after(server: Server, before: MetricsPage, requests: int) -> MetricsPage:
    ended = before.ends["LENGTH"] + requests
    return page_when(server, lambda page: page.quiet and page.ends["LENGTH"] >= ended)


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
