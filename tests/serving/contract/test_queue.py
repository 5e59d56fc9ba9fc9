"""Who is let go and who waits: `stop`, deadlines, priorities, and the queue's bound."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import ENDLESS, paced
from tests.fixtures.waiting import wait_until
from tests.serving.metrics_page import page_when
from tests.serving.model_replies import DIRECT, ENSEMBLE, MODELS, ask, message, prompt_for, stream_of, together
from tests.serving.raw_requests import TIMEOUT, GrpcCall, GrpcConnection, generate, request

PROMPT = "The quick brown fox"
LONG = 1900
"""Tokens of an answer on the shared server that is ended long before it ends."""
DUMMIES: dict[str, Any] = {"input_ids": np.zeros((1, 1), np.int32), "input_lengths": 0, "request_output_len": 0}
"""What upstream's clients send along with `stop`."""
WAITING = 2
"""Requests that the narrow server lets wait."""


@pytest.fixture(scope="module")
def module_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    """Runs one request at a time, and WAITING may wait."""
    wide = paced()
    options = DeploymentOptions(
        kv_cache_tokens=wide.kv_cache_tokens, max_num_sequences=1, max_queue_size=WAITING, parameters=wide.parameters
    )
    with shared_server(tiny_engine("llama"), options) as running:
        yield running


@pytest.fixture
def narrow_server(module_server: Server) -> Iterator[Server]:
    """The narrow server at rest, whatever became of the test before."""
    page_when(module_server, lambda page: page.quiet)
    yield module_server
    stop(module_server, "running")
    stop(module_server, "waiting")


@pytest.fixture
def connection(narrow_server: Server) -> Iterator[GrpcConnection]:
    """A connection to the narrow server, whose only place is taken."""
    with GrpcConnection(narrow_server.grpc_address) as opened:
        open_stream(opened, narrow_server, DIRECT, "running", ENDLESS).wait_for(1)
        yield opened


def stop(server: Server, request_id: str) -> None:
    """Send `stop`; it gets one response, without anything."""
    (reply,) = stream_of(server, request(DIRECT, {**DUMMIES, "stop": True}, request_id))
    assert (dict(reply.tensors), reply.error, reply.final) == ({}, None, True)


def open_stream(
    connection: GrpcConnection, server: Server, model: str, request_id: str, count: int, **values: Any
) -> GrpcCall:
    prompt = prompt_for(server, model, PROMPT)
    return connection.send(message(model, prompt, count, request_id, **{"stream": True, **values}))


def await_waiting(server: Server, count: int) -> None:
    """Until so many requests wait."""
    page_when(server, lambda page: page.requests["waiting"] == count)


def test_stop_ends_what_runs_with_what_it_has_said(paced_server: Server) -> None:
    with GrpcConnection(paced_server.grpc_address) as connection:
        calls = [open_stream(connection, paced_server, model, f"to stop {model}", LONG) for model in MODELS]
        for call, model in zip(calls, MODELS, strict=True):
            call.wait_for(3)
            stop(paced_server, f"to stop {model}")
        for call in calls:
            responses = call.finish()
            assert [response.error for response in responses] == [None] * len(responses)
            assert responses[-1].finish_reason == "cancelled"
            assert 3 <= responses[-1].count("num_output_tokens") < LONG
            told = [response for response in responses if response.outputs]
            assert told[-1].count("num_responses") == len(told)


def test_stop_ends_a_whole_answer_with_what_it_would_have_said(paced_server: Server) -> None:
    page_when(paced_server, lambda page: page.quiet)
    with GrpcConnection(paced_server.grpc_address) as connection:
        call = open_stream(connection, paced_server, DIRECT, "whole", LONG, stream=False, exclude_input_in_output=True)
        page_when(paced_server, lambda page: page.batcher["generation_requests"] == 1)
        stop(paced_server, "whole")
        (response,) = call.finish()
    assert response.finish_reason == "cancelled"
    assert 0 < len(response.token_ids) < LONG


def test_stop_of_an_unknown_id_is_no_error_and_without_an_id_it_is(paced_server: Server) -> None:
    stop(paced_server, "nobody")
    (reply,) = stream_of(paced_server, request(DIRECT, {**DUMMIES, "stop": True}))
    assert reply.error is not None
    assert "Trying to stop a request but request ID is not provided" in reply.error


def test_a_deadline_ends_what_runs_with_what_it_has_said(paced_server: Server) -> None:
    """Streams and whole answers alike, and not before."""
    began = time.monotonic()
    asked = [(model, stream) for model in MODELS for stream in (True, False)]
    sent = [
        message(model, prompt_for(paced_server, model, PROMPT), LONG, deadline_ms=1500, stream=stream)
        for model, stream in asked
    ]
    for found, what in zip(together(paced_server, *sent), asked, strict=True):
        assert found[-1].finish_reason == "deadline", what
        assert 0 < found[-1].number("num_output_tokens") < LONG, what
    assert time.monotonic() - began >= 1.4


def test_a_deadline_ends_what_waits_and_it_never_runs(narrow_server: Server, connection: GrpcConnection) -> None:
    for model in MODELS:
        prompt = prompt_for(narrow_server, model, PROMPT)
        (reply,) = ask(narrow_server, model, prompt, 5, deadline_ms=400, stream=True, return_perf_metrics=True)
        assert (reply.finish_reason, reply.number("num_output_tokens")) == ("deadline", 0), model
        assert reply.number("first_scheduled_time_ns") == 0, model


def test_who_has_the_higher_priority_leaves_the_queue_first(narrow_server: Server, connection: GrpcConnection) -> None:
    early = open_stream(connection, narrow_server, ENSEMBLE, "", 4, priority=-1, return_perf_metrics=True)
    await_waiting(narrow_server, 1)
    late = open_stream(connection, narrow_server, DIRECT, "", 4, priority=7, return_perf_metrics=True)
    await_waiting(narrow_server, 2)
    stop(narrow_server, "running")
    ends = [call.finish()[-1] for call in (early, late)]
    began = [np.frombuffer(end.outputs["first_scheduled_time_ns"], np.int64)[0] for end in ends]
    assert began[1] < began[0]
    assert [end.finish_reason for end in ends] == ["length", "length"]


def test_over_the_queues_bound_a_request_is_refused_and_the_others_go_on(
    narrow_server: Server, connection: GrpcConnection
) -> None:
    calls = [
        open_stream(connection, narrow_server, MODELS[number % 2], f"waiting {number}", 3)
        for number in range(WAITING + 3)
    ]
    ended = [call.ended for call in calls]
    wait_until(lambda: sum(each.is_set() for each in ended) >= 3, "the end of 3 calls", TIMEOUT)
    refused = [call for call in calls if call.ended.is_set()]
    for call in refused:
        assert "Exceeds maximum queue size" in call.error()
    await_waiting(narrow_server, WAITING)
    status, answer = generate(narrow_server.http_address, {"text_input": PROMPT, "max_tokens": 2})
    assert "Exceeds maximum queue size" in answer["error"]
    assert status == 400  # Triton has no other at this endpoint
    stop(narrow_server, "running")
    taken = [call.finish()[-1].finish_reason for call in calls if call not in refused]
    assert taken == ["length"] * WAITING
