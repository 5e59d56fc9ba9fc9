"""Random mixes of requests: each ends once and as it would alone, and nothing of any is left when all is quiet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from inflight.deploy.server import Server
from tests.serving.metrics_page import page_when
from tests.serving.random_mix import Greedy, Mix, known_answers, run
from tests.serving.reference import references

MODELS = ("ensemble", "tensorrt_llm", "tensorrt_llm_bls")
AT_A_TIME = 40


@pytest.fixture(scope="module")
def tokenizer(demo_server: Server) -> Tokenizer:
    return Tokenizer.from_file(str(demo_server.engine / "tokenizer.json"))


@pytest.fixture(scope="module")
def known(demo_checkpoint: Callable[[], Path], tokenizer: Tokenizer) -> list[Greedy]:
    found = known_answers(references(demo_checkpoint()), tokenizer)
    assert len(found) >= 10
    return found


@pytest.fixture
def nothing_is_left(demo_server: Server) -> Iterator[None]:
    """Nothing runs or waits, no KV block is held, and every request that began has been counted once at its end."""
    page_when(demo_server, lambda page: page.quiet)
    yield
    page_when(demo_server, lambda page: page.quiet)
    assert demo_server.ready
    assert demo_server.restarts == 0


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 33))])
def test_each_request_ends_once_and_greedy_ones_as_they_would_alone(
    demo_server: Server, known: list[Greedy], tokenizer: Tokenizer, seed: int
) -> None:
    mix = Mix(seed, MODELS, known, tokenizer)
    seen: Counter[str] = Counter()
    for _ in range(2):
        wrong, models = run([mix.draw() for _ in range(AT_A_TIME)], demo_server.grpc_address, demo_server.http_address)
        assert wrong == []
        seen += models
    assert set(seen) == set(MODELS)
