"""What ends an answer of `tensorrt_llm_bls` early: its client's leaving, `stop`, a stop word, a failing engine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.process import ENGINE_PROCESS
from inflight.deploy.server.server import Server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import fake_engine
from tests.serving.bls.bls_requests import BLS, ask, words
from tests.serving.metrics_page import difference, page_when
from tests.serving.raw_requests import GrpcConnection, events, generate, post, request

# So long that a busy machine, too, passes a message on within a step.
STEP_SECONDS = 0.2
PROMPT = "The quick brown fox"
WAITING = 2
SERVERS = ["narrow_server", pytest.param("narrow_foreign_server", marks=pytest.mark.slow)]


def narrow(engine: Path, inflight_tensors: str) -> Server:
    """The fake engine with places for two, and WAITING more in its queue."""
    parameters = {**fake_engine(step_seconds=STEP_SECONDS), BLS: {"inflight_tensors": inflight_tensors}}
    return Server(engine, DeploymentOptions(max_num_sequences=2, max_queue_size=WAITING, parameters=parameters))


@pytest.fixture(scope="module")
def narrow_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    with narrow(tiny_engine("llama"), "true") as running:
        yield running


@pytest.fixture(scope="module")
def narrow_foreign_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    """Its engine's model is asked for nothing but upstream's tensors, as on TensorRT-LLM's own backend."""
    with narrow(tiny_engine("llama"), "false") as running:
        yield running


def grpc_close(server: Server, connection: GrpcConnection) -> float:
    call = ask(connection, PROMPT, 500)
    call.wait_for(2)
    return call.cancel()


def grpc_close_of_a_whole_answer(server: Server, connection: GrpcConnection) -> float:
    call = ask(connection, PROMPT, 500, stream=False)
    time.sleep(3 * STEP_SECONDS)
    return call.cancel()


def http_close(server: Server, connection: GrpcConnection) -> float:
    values = {"text_input": PROMPT, "max_tokens": 500, "stream": True}
    with post(server.http_address, f"/v2/models/{BLS}/generate_stream", values) as response:
        arriving = events(response)
        for _ in range(2):
            next(arriving)
    return time.monotonic()


def stop_word(server: Server, connection: GrpcConnection) -> float:
    (*_, last) = ask(connection, PROMPT, 500, stop_words=words("quick")).finish()
    assert last.finish_reason == "stop_word"
    return last.at


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize(
    "end", [grpc_close, pytest.param(grpc_close_of_a_whole_answer, marks=pytest.mark.slow), http_close, stop_word]
)
def test_an_early_end_frees_the_place_within_two_steps(
    serving: Callable[[str], Server], name: str, end: Callable[[Server, GrpcConnection], float]
) -> None:
    server = serving(name)
    page_when(server, lambda page: page.quiet)
    steps: list[float] = []
    with GrpcConnection(server.grpc_address) as connection:
        other = ask(connection, PROMPT, 400)
        other.wait_for(1)
        # A busy machine is late now and then: once in five times may be its fault.
        while sum(map(in_time, steps)) < 4 and len(steps) - sum(map(in_time, steps)) < 2:
            steps.append(steps_until_the_next_begins(server, connection, end))
        assert not other.ended.is_set()
        assert all(response.error is None for response in other.responses)
        other.cancel()
    assert sum(map(in_time, steps)) >= 4, steps


def in_time(steps: float) -> bool:
    """The place is free within two steps; the next one's first token takes another, and some time to arrive."""
    return steps <= 3.5


def steps_until_the_next_begins(
    server: Server, connection: GrpcConnection, end: Callable[[Server, GrpcConnection], float]
) -> float:
    ended_at = end(server, connection)
    following = ask(connection, PROMPT, 2)
    following.wait_for(1)
    assert following.responses[0].error is None
    following.finish()
    return (following.responses[0].at - ended_at) / STEP_SECONDS


def test_every_end_is_counted_as_what_it_is(narrow_server: Server) -> None:
    before = page_when(narrow_server, lambda page: page.quiet).ends
    with GrpcConnection(narrow_server.grpc_address) as connection:
        for end in (grpc_close, grpc_close_of_a_whole_answer, stop_word):
            end(narrow_server, connection)
    page = page_when(narrow_server, lambda page: sum(page.ends.values()) == sum(before.values()) + 3)
    assert difference(page.ends, before) == {"CANCELED": 2, "STOP_WORD": 1}


def stop_engine(request_id: str) -> Any:
    tokens = {"input_ids": np.array([[0]], np.int32), "input_lengths": 1, "request_output_len": 1}
    return request("tensorrt_llm", {**tokens, "stop": True}, request_id)


def stop_bls(request_id: str) -> Any:
    return request(BLS, {"text_input": "", "max_tokens": 1, "stop": True}, request_id)


@pytest.mark.parametrize(
    ("name", "stop"),
    [
        ("narrow_server", stop_engine),
        ("narrow_server", stop_bls),
        # The engine does not know the client's id there.
        pytest.param("narrow_foreign_server", stop_bls, marks=pytest.mark.slow),
    ],
)
def test_stop_with_the_requests_id_ends_it_with_what_it_has_said(
    serving: Callable[[str], Server], name: str, stop: Callable[[str], Any]
) -> None:
    server = serving(name)
    page_when(server, lambda page: page.quiet)
    with GrpcConnection(server.grpc_address) as connection:
        for stream in (True, False):
            call = ask(connection, PROMPT, 500, request_id="mine", stream=stream, exclude_input_in_output=True)
            page_when(server, lambda page: page.requests["scheduled"] == 1)
            other = ask(connection, PROMPT, 500, request_id="other")
            other.wait_for(3)  # by then the first one has said as much
            assert connection.send(stop("mine")).finish()[0].error is None
            responses = call.finish()
            assert responses[-1].error is None
            text = "".join(response.text for response in responses)
            assert text
            assert (PROMPT * 4).startswith(text)
            assert not other.ended.is_set()
            other.cancel()
            page_when(server, lambda page: page.quiet)


def test_what_the_engine_refuses_is_said_at_once(narrow_server: Server) -> None:
    page_when(narrow_server, lambda page: page.quiet)
    with GrpcConnection(narrow_server.grpc_address) as connection:
        calls = []
        for number in range(2 + WAITING):
            calls.append(ask(connection, PROMPT, 300))
            page_when(narrow_server, lambda page, sent=number + 1: page.requests["active"] == sent)  # type: ignore[misc]
        _, answer = generate(narrow_server.http_address, {"text_input": PROMPT, "max_tokens": 3}, BLS)
        assert "Exceeds maximum queue size" in answer["error"]
        for call in calls:
            assert not call.ended.is_set()
            call.cancel()


def test_a_dying_engine_ends_its_answers_with_an_error(tiny_engine: TinyEngine) -> None:
    with (
        Server(tiny_engine("llama"), DeploymentOptions(parameters=fake_engine(step_seconds=0.1))) as server,
        GrpcConnection(server.grpc_address) as connection,
    ):
        calls = [ask(connection, PROMPT, 2000, stream=stream) for stream in (True, True, False)]
        page_when(server, lambda page: page.requests["scheduled"] == len(calls))
        engine = next(member for member in server.instance.process_tree if member.name.startswith(ENGINE_PROCESS))
        os.kill(engine.pid, signal.SIGKILL)
        for call in calls:
            assert "[engine_died]" in str(call.finish()[-1].error)
