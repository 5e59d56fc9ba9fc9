"""Servers that only these tests need; they end with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from build_engines.manifest import GpuLimits
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.fixtures.crashes import shared_server
from tests.fixtures.tensorrtllm import GpuEngine, stand_in_backend
from tests.serving.tensorrtllm.echo import ENDLESS, QUEUE, TOKENIZER
from tests.text.example_tokenizers import ADDED, SPECIAL


@pytest.fixture(scope="module")
def cpp_engine(gpu_engine: GpuEngine) -> Path:
    """Its model has two end tokens, of which the backend gets one."""
    ends = [TOKENIZER.token_to_id(SPECIAL), TOKENIZER.token_to_id(ADDED)]
    limits = GpuLimits(max_batch_size=64, max_num_tokens=8192, max_input_len=1024, max_beam_width=2)
    longest = ENDLESS + limits.max_input_len
    return gpu_engine("llama", tokenizer=TOKENIZER, end_ids=ends, limits=limits, max_seq_len=longest)


@pytest.fixture(scope="module")
def cpp_server(cpp_engine: Path) -> Iterator[Server]:
    """Shared, so no test may harm it, nor fill its queue for longer than it must."""
    options = DeploymentOptions(max_queue_size=QUEUE, settings={"max_beam_width": "2"})
    with stand_in_backend(), shared_server(cpp_engine, options) as running:
        yield running


@pytest.fixture
def serving(request: pytest.FixtureRequest) -> Callable[[str], Server]:
    """A shared server by its fixture's name, for tests that run on several."""

    def find(name: str) -> Server:
        found = request.getfixturevalue(name)
        assert isinstance(found, Server)
        return found

    return find
