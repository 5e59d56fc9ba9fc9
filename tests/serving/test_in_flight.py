"""In-flight batching as clients see it: who comes later need not wait, and no stream stalls meanwhile."""

from __future__ import annotations

import random
import re
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer

from benchmarks.fixtures import bench_engine
from benchmarks.prompts import Prompts
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.fixtures.crashes import shared_server
from tests.fixtures.server import STEP_SECONDS
from tests.fixtures.waiting import wait_until
from tests.serving.raw_requests import GrpcCall, GrpcConnection, events, post

pytestmark = pytest.mark.alone

LONG = 3500
"""Tokens of an answer that is far from its end when a short one has come and gone."""


@pytest.fixture(scope="module")
def half_billion_server() -> Iterator[Server]:
    """The shape of Qwen2.5-0.5B at bf16, with the committed settings."""
    with shared_server(bench_engine("qwen2.5-0.5b", "bf16"), DeploymentOptions(kv_cache_tokens=40960)) as running:
        yield running


def prompts_for(server: Server) -> Prompts:
    """Prompts that no test before can have asked this server."""
    return Prompts(Tokenizer.from_file(str(server.engine / "tokenizer.json")), random.randrange(2**32))


@pytest.mark.parametrize("name", ["paced_server", pytest.param("demo_server", marks=pytest.mark.slow)])
def test_a_short_request_among_long_ones_starts_at_once_and_ends_first(
    serving: Callable[[str], Server], name: str
) -> None:
    server = serving(name)
    taken = prompts_for(server).next_prompts(17, 20)
    with GrpcConnection(server.grpc_address) as connection:
        long = [connection.text(text, LONG, end_id=-1) for text, _ in taken[:16]]
        for call in long:
            call.wait_for(5)
        short = connection.text(taken[16][0], 5, end_id=-1)
        responses = short.finish()
        assert not any(call.ended.is_set() for call in long)
        if name == "paced_server":  # steps of the demo model are done sooner than the chunks have gone their way
            assert responses[0].at - short.sent_at < LONG * STEP_SECONDS / 10
        for call in long:
            call.cancel()


def test_a_long_prompt_does_not_hold_up_a_running_stream(demo_server: Server) -> None:
    (_, running), (_, long) = [prompts_for(demo_server).next_prompts(1, tokens)[0] for tokens in (16, 2000)]
    with GrpcConnection(demo_server.grpc_address) as connection:
        call = connection.tokens(running, LONG, end_id=-1)
        call.wait_for(20)
        arrival = connection.tokens(long, 1, end_id=-1)
        (first,) = arrival.finish()
        meanwhile = sum(arrival.sent_at < response.at < first.at for response in call.responses)
        call.cancel()
    # 2,000 tokens are at least 8 steps, mostly far more, and each of them brings the running stream a token.
    assert meanwhile >= 10


@pytest.mark.slow
def test_gaps_between_tokens_stay_short_while_a_long_prompt_comes_in(half_billion_server: Server) -> None:
    prompts = prompts_for(half_billion_server)
    ratios = [gap_ratio(half_billion_server, prompts) for _ in range(5)]
    assert statistics.median(ratios) <= 3, ratios


def gap_ratio(server: Server, prompts: Prompts) -> float:
    """The p99 gap between a stream's tokens while a 2,000-token prompt is computed, over that of the time before."""
    (_, running), (_, long) = prompts.next_prompts(1, 16)[0], prompts.next_prompts(1, 2000)[0]
    with GrpcConnection(server.grpc_address) as connection:
        call = connection.tokens(running, 1000, end_id=-1)
        call.wait_for(120)
        arrival = connection.tokens(long, 1, end_id=-1)
        (first,) = arrival.finish()
        call.cancel()
        quiet = gaps(call, call.responses[10].at, arrival.sent_at)
        meanwhile = gaps(call, arrival.sent_at, first.at)
    return float(np.percentile(meanwhile, 99) / np.percentile(quiet, 99))


def gaps(call: GrpcCall, begin: float, end: float) -> list[float]:
    """Seconds between the responses that came from `begin` to `end`."""
    return [later.at - one.at for one, later in pairwise(call.responses) if begin <= later.at <= end]


@pytest.mark.parametrize(
    ("name", "tokens"),
    # The demo model is so small that 1,000 tokens take it hardly longer than the way to it and back.
    [("demo_server", 3500), pytest.param("half_billion_server", 1000, marks=pytest.mark.slow)],
)
def test_a_known_prefix_is_not_computed_again(serving: Callable[[str], Server], name: str, tokens: int) -> None:
    server = serving(name)
    prompts = prompts_for(server)
    ratios = []
    for _ in range(3):
        ((text, _),) = prompts.next_prompts(1, tokens)
        first = seconds_to_first_chunk(server, text)
        ratios.append(seconds_to_first_chunk(server, text + " and so on") / first)
    # The first is computed in 37 steps and the second in one. Whatever else this machine does may hold up either.
    assert min(ratios) < 0.2, ratios


def seconds_to_first_chunk(server: Server, text: str) -> float:
    """Over HTTP, the connection included."""
    sent = time.monotonic()
    values = {"text_input": text, "max_tokens": 2, "stream": True}
    with post(server.http_address, "/v2/models/ensemble/generate_stream", values) as response:
        moments = [at for at, _ in events(response)]
    return moments[0] - sent


@pytest.mark.parametrize("name", ["paced_server", pytest.param("demo_server", marks=pytest.mark.slow)])
def test_postprocessing_decodes_what_one_step_made_for_all_streams_together(
    serving: Callable[[str], Server], name: str
) -> None:
    server = serving(name)
    taken = prompts_for(server).next_prompts(64, 20)
    chunks, executions = postprocessed(server)
    with GrpcConnection(server.grpc_address) as connection:
        calls = [connection.text(text, 60, end_id=-1) for text, _ in taken]
        for call in calls:
            call.finish()
    # Triton counts an execution a moment after its answers have gone.
    wait_until(lambda: postprocessed(server)[0] - chunks >= 64 * 60)
    now_chunks, now_executions = postprocessed(server)
    assert (now_chunks - chunks) / (now_executions - executions) >= 8


def postprocessed(server: Server) -> tuple[int, int]:
    """Chunks that postprocessing has decoded, and its executions, by Triton's own count."""
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics") as page:
        text = page.read().decode()
    chunks, executions = (
        re.search(rf'^{name}{{model="postprocessing",version="1"}} (\d+)', text, re.MULTILINE)
        for name in ("nv_inference_count", "nv_inference_exec_count")
    )
    assert chunks is not None
    assert executions is not None
    return int(chunks[1]), int(executions[1])
