"""The comparison of AsyncClient with bare code runs, and reports both."""

from __future__ import annotations

import pytest

from benchmarks.client_cost import measure, paced_engine
from inflight.deploy.server.server import Server
from tests.fixtures.engines import TinyEngine


@pytest.mark.slow
def test_both_ways_are_measured(tiny_engine: TinyEngine) -> None:
    said: list[str] = []
    with Server(tiny_engine("llama"), paced_engine(0.02, 8)) as server:
        cost = measure(server.grpc_address, streams=4, max_tokens=8, pairs=2, on_message=said.append)
    assert len(cost.ratios) == len(said) == 2
    assert cost.client_us > 0
    assert cost.bare_us > 0
