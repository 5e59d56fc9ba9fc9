"""The table of docs/request-contract.md: of which whole answers a client's leaving is noticed; and many that end."""

from __future__ import annotations

import http.client
import json

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import fake_engine
from tests.serving.metrics_page import difference, page_when
from tests.serving.model_replies import MODELS, generate_body
from tests.serving.raw_requests import GrpcConnection

IDS, TEXT = [5, 6, 7], "The quick brown fox"
ENDLESS = 4000
"""Tokens that no test here sees the end of."""
SHORT = 100
"""Tokens that still are on their way when the client leaves, unless the machine is very busy."""
AT_ONCE = 60


def test_over_grpc_the_engines_model_notices_it_and_whole_answers_of_others_run_to_their_end(
    paced_server: Server,
) -> None:
    # The server's own request at its start is counted.
    before = page_when(paced_server, lambda page: page.quiet and any(page.ends.values())).ends
    with GrpcConnection(paced_server.grpc_address) as connection:
        calls = [connection.tokens(IDS, ENDLESS, streaming=False), connection.text(TEXT, SHORT, stream=False)]
        posts = []
        for model in MODELS:
            posts.append(http.client.HTTPConnection(paced_server.http_address, timeout=60))
            body = json.dumps(generate_body(paced_server, model, TEXT, max_tokens=SHORT))
            posts[-1].request("POST", f"/v2/models/{model}/generate", body)
        began = sum(before.values()) + len(calls) + len(posts)
        page_when(paced_server, lambda page: page.requests["active"] + sum(page.ends.values()) == began)
        for call in calls:
            call.cancel()
        for post in posts:
            post.close()
        ends = page_when(paced_server, lambda page: sum(page.ends.values()) == began).ends
    assert difference(ends, before) == {"CANCELED": 1, "LENGTH": 3}


def test_a_stream_with_several_tokens_per_response_ends_in_the_engine_when_its_client_leaves(
    interval_server: Server,
) -> None:
    before = page_when(interval_server, lambda page: page.quiet and any(page.ends.values())).ends
    with GrpcConnection(interval_server.grpc_address) as connection:
        calls = [connection.tokens(IDS, ENDLESS), connection.text(TEXT, ENDLESS, end_id=-1)]
        began = sum(before.values()) + len(calls)
        page_when(interval_server, lambda page: page.requests["active"] + sum(page.ends.values()) == began)
        for call in calls:
            call.cancel()
        ends = page_when(interval_server, lambda page: sum(page.ends.values()) == began).ends
    assert difference(ends, before) == {"CANCELED": len(calls)}


def test_no_client_is_asked_after_its_last_response(tiny_engine: TinyEngine) -> None:
    # Triton forgets a request with its last response; a question about it afterwards would end the whole server.
    parameters = fake_engine()
    parameters["tensorrt_llm"]["cancellation_check_period_ms"] = "1"
    with Server(tiny_engine("llama"), DeploymentOptions(parameters=parameters)) as server:
        with GrpcConnection(server.grpc_address) as connection:
            for _ in range(8):
                calls = [connection.tokens(IDS, 3, end_id=-1) for _ in range(AT_ONCE)]
                assert [call.finish()[-1].error for call in calls] == [None] * AT_ONCE
        assert server.restarts == 0
