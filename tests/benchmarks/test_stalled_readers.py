"""Readers that never read take a bounded part of the server's memory, and others are served meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from benchmarks.stalled_readers import TRANSPORTS, fake_engine, hold_readers
from inflight.deploy.server.server import Server
from tests.fixtures.engines import TinyEngine

READERS = 64
QUICK = (("ensemble", "grpc"), ("tensorrt_llm_bls", "http"))
MAX_TOKENS = 60
KIB = 1024
MOST_FOR_A_STREAM = 256 * KIB
MOST_FOR_A_RESPONSE = 8 * KIB
"""Three times what `python -m benchmarks.stalled_readers` measured."""


@pytest.fixture(scope="module")
def fast_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    with Server(tiny_engine("llama"), fake_engine()) as running:
        yield running


@pytest.mark.parametrize(
    ("model", "transport"),
    [
        pytest.param(*each, marks=[] if each in QUICK else pytest.mark.slow)
        for each in itertools.product(("ensemble", "tensorrt_llm_bls", "tensorrt_llm"), TRANSPORTS)
    ],
)
def test_what_waits_is_bounded_by_each_readers_max_tokens(fast_server: Server, model: str, transport: str) -> None:
    found = hold_readers(fast_server, model, transport, READERS, MAX_TOKENS)
    assert found.per_reader < MOST_FOR_A_STREAM + MAX_TOKENS * MOST_FOR_A_RESPONSE, found
    assert fast_server.restarts == 0
