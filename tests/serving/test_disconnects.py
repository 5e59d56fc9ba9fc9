"""The table of docs/request-contract.md: of which whole answers a client's leaving is noticed."""

from __future__ import annotations

import http.client
import json
from typing import Any

from inflight.deploy.server.server import Server
from tests.serving.metrics_page import difference, page_when
from tests.serving.raw_requests import GrpcConnection, request

IDS = [5, 6, 7]
ENDLESS = 4000
"""Tokens that no test here sees the end of."""
SHORT = 100
"""Tokens that still are on their way when the client leaves, unless the machine is very busy."""


def values(model: str, tokens: int) -> dict[str, Any]:
    if model == "tensorrt_llm":
        return {"input_lengths": len(IDS), "request_output_len": tokens}
    return {"text_input": "The quick brown fox", "max_tokens": tokens}


def open_http(address: str, model: str, tokens: int) -> http.client.HTTPConnection:
    ids = {"input_ids": IDS} if model == "tensorrt_llm" else {}
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("POST", f"/v2/models/{model}/generate", json.dumps({**values(model, tokens), **ids}))
    return connection


def test_over_grpc_the_engines_model_notices_it_and_whole_answers_of_others_run_to_their_end(
    paced_server: Server,
) -> None:
    # The server's own request at its start is counted.
    before = page_when(paced_server, lambda page: page.quiet and any(page.ends.values())).ends
    with GrpcConnection(paced_server.grpc_address) as connection:
        calls = [
            connection.tokens(IDS, ENDLESS, streaming=False),
            connection.send(request("ensemble", values("ensemble", SHORT))),
        ]
        posts = [open_http(paced_server.http_address, model, SHORT) for model in ("ensemble", "tensorrt_llm")]
        requests = len(calls) + len(posts)
        began = sum(before.values()) + requests
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
        calls = [
            connection.tokens(IDS, ENDLESS, streaming=True),
            connection.text("The quick brown fox", ENDLESS, end_id=-1),
        ]
        began = sum(before.values()) + len(calls)
        page_when(interval_server, lambda page: page.requests["active"] + sum(page.ends.values()) == began)
        for call in calls:
            call.cancel()
        ends = page_when(interval_server, lambda page: sum(page.ends.values()) == began).ends
    assert difference(ends, before) == {"CANCELED": len(calls)}
