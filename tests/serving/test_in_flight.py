"""In-flight batching as clients see it: who comes later need not wait, and no stream stalls meanwhile."""

from __future__ import annotations

import pytest

from inflight.deploy.server.server import Server
from tests.fixtures.server import STEP_SECONDS
from tests.fixtures.waiting import wait_until
from tests.serving.metrics_page import page_of
from tests.serving.raw_requests import GrpcConnection

pytestmark = pytest.mark.alone

LONG = 3500
"""Tokens of an answer that is far from its end when a short one has come and gone."""


def test_a_short_request_among_long_ones_starts_at_once_and_ends_first(paced_server: Server) -> None:
    with GrpcConnection(paced_server.grpc_address) as connection:
        long = [connection.text(f"{number} quick brown foxes", LONG, end_id=-1) for number in range(16)]
        for call in long:
            call.wait_for(5)
        short = connection.text("a lazy dog", 5, end_id=-1)
        responses = short.finish()
        assert not any(call.ended.is_set() for call in long)
        assert responses[0].at - short.sent_at < LONG * STEP_SECONDS / 10
        for call in long:
            call.cancel()


def test_postprocessing_decodes_what_one_step_made_for_all_streams_together(paced_server: Server) -> None:
    chunks, executions = postprocessed(paced_server)
    with GrpcConnection(paced_server.grpc_address) as connection:
        calls = [connection.text(f"{number} quick brown foxes", 60, end_id=-1) for number in range(64)]
        for call in calls:
            call.finish()
    # Triton counts an execution a moment after its answers have gone.
    wait_until(lambda: postprocessed(paced_server)[0] - chunks >= 64 * 60)
    now_chunks, now_executions = postprocessed(paced_server)
    assert (now_chunks - chunks) / (now_executions - executions) >= 8


def postprocessed(server: Server) -> tuple[float, float]:
    """Chunks that postprocessing has decoded, and its executions, by Triton's own count."""
    page = page_of(server)
    return page.value("nv_inference_count", "postprocessing"), page.value("nv_inference_exec_count", "postprocessing")
