"""What an operator reads on the metrics page: upstream's names and labels, the engine's state, every end once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import pytest

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import fake_engine
from tests.serving.metrics_page import MetricsPage, difference, page_of, page_when, text_of
from tests.serving.raw_requests import GrpcCall, GrpcConnection, events, generate, post

STEP_SECONDS = 0.02
PLACES = 2
QUEUE = 8
KV_TOKENS = 96 * 1024
ENDLESS = 30_000
PROMPT = list(range(100, 107))

GAUGES = {
    "nv_trt_llm_request_metrics": ("request_type", {"active", "max", "scheduled", "context", "waiting"}),
    "nv_trt_llm_runtime_memory_metrics": ("memory_type", {"cpu", "gpu", "pinned"}),
    "nv_trt_llm_kv_cache_block_metrics": (
        "kv_cache_block_type",
        {"max", "free", "used", "tokens_per", "reused", "fraction"},
    ),
    "nv_trt_llm_inflight_batcher_metrics": (
        "inflight_batcher_specific_metric",
        {"total_context_tokens", "generation_requests", "micro_batch_id", "paused_requests"},
    ),
    "nv_trt_llm_general_metrics": ("general_type", {"timestamp", "iteration_counter"}),
}
COUNTERS = {
    "nv_trt_llm_disaggregated_serving_metrics": (
        "disaggregated_serving_type",
        {"kv_cache_transfer_ms", "request_count"},
    ),
    "inflight_requests_total": (
        "reason",
        {"STOP", "LENGTH", "STOP_WORD", "CANCELED", "DEADLINE", "ERROR", "REJECTED"},
    ),
}
TOKEN_HISTOGRAMS = {
    "nv_llm_input_token_len": "total_input_tokens",
    "nv_llm_output_token_len": "total_output_tokens",
}
SECONDS_HISTOGRAMS = (
    "inflight_time_to_first_token_seconds",
    "inflight_inter_token_latency_seconds",
    "inflight_queue_time_seconds",
    "inflight_request_duration_seconds",
)


@pytest.fixture(scope="module")
def measured_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    """The fake engine with PLACES places, whose prompts take a step for each 8 tokens."""
    options = DeploymentOptions(
        max_num_sequences=PLACES,
        max_queue_size=QUEUE,
        kv_cache_tokens=KV_TOKENS,
        kv_cache_reuse=False,
        parameters=fake_engine(step_seconds=STEP_SECONDS, prefill_tokens_per_step=8, max_seq_len=32768),
    )
    with shared_server(tiny_engine("llama"), options) as running:
        yield running


@pytest.fixture
def connection(measured_server: Server) -> Iterator[GrpcConnection]:
    """A connection to the server once nothing runs there any more, and its own first request is counted."""
    page_when(measured_server, lambda page: page.quiet and sum(page.ends.values()) >= 1)
    with GrpcConnection(measured_server.grpc_address) as opened:
        yield opened
    page_when(measured_server, lambda page: page.quiet)


def test_names_labels_and_kinds_are_upstreams(server: Server) -> None:
    page = page_of(server)
    for kind, families in (("gauge", GAUGES), ("counter", COUNTERS)):
        for name, (label, members) in families.items():
            assert page.kinds[name] == kind
            assert {frozenset(dict(labels)) for labels in page.family(name)} == {frozenset({"model", "version", label})}
            assert set(page.state(name, label)) == members
            assert {dict(labels)["model"] for labels in page.family(name)} == {"tensorrt_llm"}


def test_histograms_are_whole_and_written_as_upstreams_checks_look_for_them(server: Server) -> None:
    generate(server.http_address, {"text_input": "tea", "max_tokens": 3})
    page, text = page_of(server), text_of(server)
    for name in (*TOKEN_HISTOGRAMS, *SECONDS_HISTOGRAMS):
        assert page.kinds[name] == "histogram"
        buckets = {dict(labels)["le"]: count for labels, count in page.family(f"{name}_bucket").items()}
        counts = [count for _, count in sorted(buckets.items(), key=lambda pair: float(pair[0]))]
        assert counts == sorted(counts)
        (count,) = page.family(f"{name}_count").values()
        assert buckets["+Inf"] == count
        if name in TOKEN_HISTOGRAMS:
            assert list(buckets) == ["10", "50", "100", "500", "1000", "+Inf"]
            member = f'model="tensorrt_llm",response_metric_type="{TOKEN_HISTOGRAMS[name]}",version="1"'
            assert f'{name}_bucket{{{member},le="1000"}} ' in text


def test_idle_figures_are_zero_and_the_limits_are_told(measured_server: Server, connection: GrpcConnection) -> None:
    page = page_of(measured_server)
    assert page.quiet
    assert page.requests["max"] == PLACES
    blocks = page.kv_blocks
    assert blocks["max"] == blocks["free"] == KV_TOKENS / blocks["tokens_per"]
    assert blocks["reused"] == 0
    assert page.value("nv_trt_llm_runtime_memory_metrics", memory_type="cpu") > 10 * 2**20
    looked_at = page.value("nv_trt_llm_general_metrics", general_type="timestamp") / 1e6
    assert abs(time.time() - looked_at) < 3600


def test_a_busy_engine_shows_who_runs_who_waits_and_what_they_hold(
    measured_server: Server, connection: GrpcConnection
) -> None:
    steps = page_of(measured_server).steps
    calls = [connection.tokens(PROMPT, ENDLESS) for _ in range(5)]
    expected = {"active": 5, "max": PLACES, "scheduled": PLACES, "context": 0, "waiting": 3}
    page = page_when(measured_server, lambda page: not difference(page.requests, expected))
    assert page.batcher["generation_requests"] == PLACES
    blocks = page.kv_blocks
    assert blocks["used"] == PLACES * math.ceil((len(PROMPT) + ENDLESS) / blocks["tokens_per"])
    assert blocks["free"] == blocks["max"] - blocks["used"]
    assert blocks["fraction"] == pytest.approx(blocks["used"] / blocks["max"])
    assert page.steps > steps
    for call in calls:
        call.cancel()
    page_when(measured_server, lambda page: page.quiet)


def test_every_request_is_measured_once(measured_server: Server, connection: GrpcConnection) -> None:
    before = page_of(measured_server)
    lengths = [3, 30, 60, 3, 12]
    calls = [connection.text("The quick brown fox", length) for length in lengths]
    prompts = [call.finish()[-1].count("num_input_tokens") for call in calls]
    page = ended(measured_server, before, len(lengths))
    assert difference(page.ends, before.ends) == {"LENGTH": len(lengths)}
    for name, total in (("nv_llm_input_token_len", sum(prompts)), ("nv_llm_output_token_len", sum(lengths))):
        labels = {"response_metric_type": TOKEN_HISTOGRAMS[name]}
        assert page.count(name, **labels) - before.count(name, **labels) == len(lengths)
        assert page.total(name, **labels) - before.total(name, **labels) == total
    for name in ("inflight_time_to_first_token_seconds", "inflight_queue_time_seconds"):
        assert page.count(name) - before.count(name) == len(lengths)
    duration = "inflight_request_duration_seconds"
    assert page.count(duration) - before.count(duration) == len(lengths)
    assert page.total(duration) - before.total(duration) >= sum(lengths) * STEP_SECONDS


def cancel_grpc_stream(server: Server, connection: GrpcConnection) -> None:
    call = connection.text("The quick brown fox", ENDLESS)
    call.wait_for(3)
    call.cancel()


def drop_http_connection(server: Server, connection: GrpcConnection) -> None:
    values = {"text_input": "The quick brown fox", "max_tokens": ENDLESS, "stream": True}
    with post(server.http_address, "/v2/models/ensemble/generate_stream", values) as response:
        next(events(response))


def stop_by_id(server: Server, connection: GrpcConnection) -> None:
    call = connection.tokens(PROMPT, ENDLESS, "stop-me")
    call.wait_for(3)
    connection.tokens(PROMPT, 1, "stop-me", stop=True).finish()
    call.finish()


def reach_an_end_token(server: Server, connection: GrpcConnection) -> None:
    connection.tokens(PROMPT, 20, end_id=PROMPT[3]).finish()


def reach_a_stop_word(server: Server, connection: GrpcConnection) -> None:
    connection.text("The quick brown fox", 200, stop_words="quick").finish()


def run_out_of_time(server: Server, connection: GrpcConnection) -> None:
    connection.tokens(PROMPT, ENDLESS, deadline_ms=400).finish()


def ask_for_too_much(server: Server, connection: GrpcConnection) -> None:
    assert "shorten the prompt" in connection.tokens(PROMPT, 10**6).error()


def find_the_queue_full(server: Server, connection: GrpcConnection) -> None:
    """All places and all of the queue are taken; two more are refused."""
    calls: list[GrpcCall] = []
    for number in range(PLACES + QUEUE):
        calls.append(connection.tokens(PROMPT, ENDLESS))
        page_when(server, lambda page, sent=number + 1: page.requests["active"] == sent)  # type: ignore[misc]
    for _ in range(2):
        assert "Exceeds maximum queue size" in connection.tokens(PROMPT, 1).error()
    for call in calls:
        call.cancel()


@pytest.mark.parametrize(
    ("act", "ends"),
    [
        (cancel_grpc_stream, {"CANCELED": 1}),
        (drop_http_connection, {"CANCELED": 1}),
        (stop_by_id, {"CANCELED": 1}),
        (reach_an_end_token, {"STOP": 1}),
        (reach_a_stop_word, {"STOP_WORD": 1}),
        (run_out_of_time, {"DEADLINE": 1}),
        (ask_for_too_much, {"REJECTED": 1}),
        (find_the_queue_full, {"CANCELED": PLACES + QUEUE, "REJECTED": 2}),
    ],
)
def test_every_end_is_counted_once_by_its_reason(
    measured_server: Server,
    connection: GrpcConnection,
    act: Callable[[Server, GrpcConnection], None],
    ends: dict[str, int],
) -> None:
    before = page_of(measured_server)
    act(measured_server, connection)
    page = ended(measured_server, before, sum(ends.values()))
    page = page_when(measured_server, lambda page: page.quiet)
    assert difference(page.ends, before.ends) == ends
    queued = sum(count for reason, count in ends.items() if reason != "REJECTED")
    for name in ("inflight_queue_time_seconds", "inflight_request_duration_seconds"):
        assert page.count(name) - before.count(name) == queued


def ended(server: Server, before: MetricsPage, count: int) -> MetricsPage:
    """The page once so many more requests have ended, and their times are there too."""
    wanted = sum(before.ends.values()) + count
    return page_when(server, lambda page: sum(page.ends.values()) >= wanted and page.quiet)
