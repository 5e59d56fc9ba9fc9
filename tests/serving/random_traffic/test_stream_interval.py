"""With --stream-interval, answers are those of a server without; engine steps of 1 to 5 ms, many clients."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from inflight_client import AsyncClient, Delta, Sampling

from inflight.deploy.server.server import Server
from inflight.runtime.engine.request_queue import SINGLE_TOKENS
from tests.fixtures.server import STREAM_INTERVAL
from tests.serving.model_replies import TEXT_MODELS

REQUESTS = 32
WORDS = ["tea", " and", " cake", " green", "é", "안녕", "👩", " 42", ";", " river"]


def drawn(source: random.Random) -> dict[str, Any]:
    words = source.choices(WORDS, k=source.randint(1, 12))
    stop = "".join(words[-2:])[-source.randint(1, 5) :]
    return {
        "prompt": "".join(words),
        "max_tokens": source.randint(1, 60),
        "sampling": Sampling(seed=source.randint(0, 9), stop=source.choice([(), (), (stop,)])),
        "return_log_probs": source.random() < 0.5,
        "return_token_ids": source.random() < 0.7,
        "return_perf_metrics": source.random() < 0.3,
    }


async def streamed(server: Server, model: str, requests: Sequence[dict[str, Any]]) -> list[list[Delta]]:
    async with AsyncClient(server.grpc_address, model=model) as client:

        async def one(values: dict[str, Any]) -> list[Delta]:
            return [delta async for delta in client.stream(**values)]

        return await asyncio.gather(*map(one, requests))


def whole(deltas: Sequence[Delta]) -> tuple[Any, ...]:
    token_ids = [one for delta in deltas for one in delta.token_ids or ()]
    log_probs = [one for delta in deltas for one in delta.log_probs or ()]
    last = deltas[-1]
    return "".join(delta.text for delta in deltas), token_ids, log_probs, last.finish_reason, last.usage


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_answers_are_those_without_an_interval(hurried_server: Server, interval_server: Server, model: str) -> None:
    source = random.Random(model)
    requests = [drawn(source) for _ in range(REQUESTS)]
    expected = asyncio.run(streamed(hurried_server, model, requests))
    found = asyncio.run(streamed(interval_server, model, requests))
    assert list(map(whole, found)) == list(map(whole, expected))


def test_the_first_responses_have_one_token_each(interval_server: Server) -> None:
    """Only of the ensemble, as the scripted model merges tokens of several steps if it lags."""
    request = {
        "prompt": "tea and cake",
        "max_tokens": SINGLE_TOKENS + 2 * STREAM_INTERVAL + 1,
        "return_token_ids": True,
    }
    (deltas,) = asyncio.run(streamed(interval_server, TEXT_MODELS[0], [request]))
    counts = [len(delta.token_ids or ()) for delta in deltas]
    assert counts == [*[1] * SINGLE_TOKENS, STREAM_INTERVAL, STREAM_INTERVAL, 1]
