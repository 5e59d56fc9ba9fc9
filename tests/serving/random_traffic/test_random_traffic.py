"""Random mixes of requests: each ends once and as it would alone, and nothing of any is left when all is quiet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import DemoEngine
from tests.serving.metrics_page import MetricsPage, difference, page_when
from tests.serving.model_replies import MODELS
from tests.serving.random_traffic.generator import RequestGenerator
from tests.serving.random_traffic.random_request import KnownAnswer, RandomRequest, known_answers
from tests.serving.random_traffic.reference import references
from tests.serving.random_traffic.runner import run

VISITS = 80
SETTLED_SECONDS = 0.3
SEEDS = [
    ("demo_server", 1),
    *(pytest.param("demo_server", seed, marks=pytest.mark.slow) for seed in range(2, 18)),
    *(pytest.param("crowded_server", seed, marks=pytest.mark.slow) for seed in range(18, 33)),
]


@pytest.fixture(scope="module")
def crowded_server(young_demo_engine: DemoEngine) -> Iterator[Server]:
    """Four sequences run at once, and the others wait."""
    with shared_server(
        young_demo_engine("fp32"), DeploymentOptions(kv_cache_tokens=16384, max_num_sequences=4)
    ) as running:
        yield running


@pytest.fixture(scope="module")
def tokenizer(young_demo_engine: DemoEngine) -> Tokenizer:
    return Tokenizer.from_file(str(young_demo_engine("fp32") / "tokenizer.json"))


@pytest.fixture(scope="module")
def known(young_demo_checkpoint: Callable[[], Path], tokenizer: Tokenizer) -> list[KnownAnswer]:
    found = known_answers(references(young_demo_checkpoint()), tokenizer)
    assert len(found) >= 10
    return found


def quiet(server: Server, ends: float = 1) -> MetricsPage:
    """The metrics once nothing runs or waits, no KV block is held, and so many requests at the least are counted.

    Gauges and counts are shown a little later, together or not, so a second look must find the same. The first request
    that is counted is the server's own at its start.
    """
    while True:
        page = page_when(server, lambda page: page.quiet and ended(page) >= ends)
        time.sleep(SETTLED_SECONDS)
        if ended(page_when(server, lambda page: page.quiet)) == ended(page):
            return page


def ended(page: MetricsPage) -> float:
    """Requests that the engine has begun and ended."""
    return sum(page.ends.values()) - page.ends["REJECTED"]


def last_ones(known: list[KnownAnswer]) -> list[RandomRequest]:
    """What goes through all models behind whatever clients sent that left at once."""
    found = [RandomRequest(model, {"exclude_input_in_output": True}, "last", known[:1]) for model in MODELS]
    for visit in found:
        visit.values |= {visit.name("max_tokens"): 1, visit.name("stream"): False, "end_id": -1}
    return found


@pytest.mark.parametrize(("name", "seed"), SEEDS)
def test_each_request_ends_once_and_greedy_ones_as_they_would_alone(
    serving: Callable[[str], Server], known: list[KnownAnswer], tokenizer: Tokenizer, name: str, seed: int
) -> None:
    server = serving(name)
    before, server_pid = quiet(server), server.pid
    mix = RequestGenerator(seed, MODELS, known, tokenizer)
    visits = [mix.draw() for _ in range(VISITS)]
    assert {visit.model for visit in visits} == set(MODELS)
    assert run(visits, server.grpc_address, server.http_address) == []
    visits += last_ones(known)
    assert run(visits[VISITS:], server.grpc_address, server.http_address) == []
    least, most = (sum(bound(visit.engine_ends) for visit in visits) for bound in (min, max))
    after = quiet(server, ended(before) + least)
    assert ended(after) - ended(before) <= most
    # Where the machine is slow to tell that a client has gone, its answer may be whole by then; seldom.
    cancelled, cut_short = difference(after.ends, before.ends)["CANCELED"], sum(visit.cut_short for visit in visits)
    assert cancelled >= 0.9 * cut_short
    assert (server.pid, server.restarts, server.ready) == (server_pid, 0, True)
