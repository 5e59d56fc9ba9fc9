"""Random mixes of requests: each ends once and as it would alone, and nothing of any is left when all is quiet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from inflight.deploy.repository import DeploymentOptions
from inflight.deploy.server import Server
from tests.fixtures.engines import DemoEngine
from tests.serving.metrics_page import Page, difference, page_when
from tests.serving.random_mix import Greedy, Mix, known_answers, run
from tests.serving.reference import references

MODELS = ("ensemble", "tensorrt_llm", "tensorrt_llm_bls")
VISITS = 80
SEEDS = [
    *(("demo_server", seed) for seed in (1, 2)),
    *(pytest.param("demo_server", seed, marks=pytest.mark.slow) for seed in range(3, 18)),
    *(pytest.param("crowded_server", seed, marks=pytest.mark.slow) for seed in range(18, 33)),
]


@pytest.fixture(scope="module")
def crowded_server(demo_engine: DemoEngine) -> Iterator[Server]:
    """Four sequences run at once, and the others wait."""
    with Server(demo_engine("fp32"), DeploymentOptions(kv_cache_tokens=16384, max_num_sequences=4)) as running:
        yield running


@pytest.fixture(scope="module")
def tokenizer(demo_engine: DemoEngine) -> Tokenizer:
    return Tokenizer.from_file(str(demo_engine("fp32") / "tokenizer.json"))


@pytest.fixture(scope="module")
def known(demo_checkpoint: Callable[[], Path], tokenizer: Tokenizer) -> list[Greedy]:
    found = known_answers(references(demo_checkpoint()), tokenizer)
    assert len(found) >= 10
    return found


def quiet(server: Server) -> Page:
    """The metrics once nothing runs or waits, no KV block is held, and each request that began is counted as ended."""
    return page_when(server, lambda page: page.quiet)


@pytest.mark.parametrize(("name", "seed"), SEEDS)
def test_each_request_ends_once_and_greedy_ones_as_they_would_alone(
    serving: Callable[[str], Server], known: list[Greedy], tokenizer: Tokenizer, name: str, seed: int
) -> None:
    server = serving(name)
    before, server_pid = quiet(server), server.pid
    mix = Mix(seed, MODELS, known, tokenizer)
    visits = [mix.draw() for _ in range(VISITS)]
    assert {visit.model for visit in visits} == set(MODELS)
    assert run(visits, server.grpc_address, server.http_address) == []
    ends = difference(quiet(server).ends, before.ends)
    ends.pop("REJECTED", None)
    least, most = (sum(bound(visit.engine_ends) for visit in visits) for bound in (min, max))
    assert least <= sum(ends.values()) <= most
    # Where the machine is slow to tell that a client has gone, its answer may be whole by then; seldom.
    assert ends["CANCELED"] >= sum(visit.cut_short for visit in visits) / 2
    assert (server.pid, server.restarts, server.ready) == (server_pid, 0, True)
