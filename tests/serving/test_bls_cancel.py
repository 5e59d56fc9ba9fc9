"""What ends an answer of `tensorrt_llm_bls` early: its client's leaving, `stop`, a stop word, a failing engine."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from inflight.deploy.process import ENGINE_PROCESS
from inflight.deploy.repository import DeploymentOptions
from inflight.deploy.server import Server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import fake_engine
from tests.serving.metrics_page import page_of
from tests.serving.streams import Grpc, events, generate, post, request
from tests.serving.test_bls import BLS, ask, words

pytestmark = pytest.mark.slow  # some of these do not pass yet: what they ask for is being built

# So long that a busy machine, too, passes a message on within a step.
STEP_SECONDS = 0.2
PROMPT = "The quick brown fox"
SERVERS = ["narrow_server", "foreign_server"]


def narrow(engine: Path, inflight_tensors: str) -> Server:
    """The fake engine with places for two, and one more in its queue."""
    parameters = {**fake_engine(step_seconds=STEP_SECONDS), BLS: {"inflight_tensors": inflight_tensors}}
    return Server(engine, DeploymentOptions(max_num_sequences=2, max_queue_size=1, parameters=parameters))


@pytest.fixture(scope="module")
def narrow_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    with narrow(tiny_engine("llama"), "true") as running:
        yield running


@pytest.fixture(scope="module")
def foreign_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    """Its engine's model is asked for nothing but upstream's tensors, as on TensorRT-LLM's own backend."""
    with narrow(tiny_engine("llama"), "false") as running:
        yield running


def grpc_close(server: Server, connection: Grpc) -> float:
    call = ask(connection, PROMPT, 500)
    call.wait_for(2)
    return call.cancel()


def grpc_close_of_a_whole_answer(server: Server, connection: Grpc) -> float:
    call = ask(connection, PROMPT, 500, stream=False)
    time.sleep(3 * STEP_SECONDS)
    return call.cancel()


def http_close(server: Server, connection: Grpc) -> float:
    values = {"text_input": PROMPT, "max_tokens": 500, "stream": True}
    with post(server.http_address, f"/v2/models/{BLS}/generate_stream", values) as response:
        arriving = events(response)
        for _ in range(2):
            next(arriving)
    return time.monotonic()


def stop_word(server: Server, connection: Grpc) -> float:
    (*_, last) = ask(connection, PROMPT, 500, stop_words=words("own f")).finish()
    assert last.finish_reason == "stop_word"
    return last.at


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("end", [grpc_close, grpc_close_of_a_whole_answer, http_close, stop_word])
def test_an_early_end_frees_the_place_within_two_steps(
    serving: Callable[[str], Server], name: str, end: Callable[[Server, Grpc], float]
) -> None:
    narrow_server = serving(name)
    wait_until_quiet(narrow_server)
    with Grpc(narrow_server.grpc_address) as connection:
        other = ask(connection, PROMPT, 400)
        other.wait_for(1)
        steps = [steps_until_the_next_begins(narrow_server, connection, end) for _ in range(3)]
        assert not other.ended.is_set()
        assert all(response.error is None for response in other.responses)
        other.cancel()
    # The place is free within two steps; the next one's first token takes another, and some time to arrive.
    assert statistics.median(steps) <= 3.5, steps


def steps_until_the_next_begins(server: Server, connection: Grpc, end: Callable[[Server, Grpc], float]) -> float:
    ended_at = end(server, connection)
    first = ask(connection, PROMPT, 2).finish()[0]
    assert first.error is None
    return (first.at - ended_at) / STEP_SECONDS


def test_every_end_is_counted_as_what_it_is(narrow_server: Server) -> None:
    wait_until_quiet(narrow_server)
    before = page_of(narrow_server).ends
    with Grpc(narrow_server.grpc_address) as connection:
        for end in (grpc_close, grpc_close_of_a_whole_answer, stop_word):
            end(narrow_server, connection)
            wait_until_quiet(narrow_server)
    after = page_of(narrow_server).ends
    assert (after["CANCELED"], after["STOP_WORD"]) == (before["CANCELED"] + 2, before["STOP_WORD"] + 1)


def wait_until_quiet(server: Server) -> None:
    """Until nothing runs or waits, and the page has had time to tell of it."""
    wait_for(lambda: not any(page_of(server).requests[state] for state in ("active", "waiting")))
    time.sleep(1)


def wait_for(holds: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("name", SERVERS)
def test_stop_with_the_requests_id_ends_it_with_what_it_has_said(serving: Callable[[str], Server], name: str) -> None:
    server = serving(name)
    wait_until_quiet(server)
    with Grpc(server.grpc_address) as connection:
        for stream in (True, False):
            call = ask(connection, PROMPT, 500, request_id="mine", stream=stream, exclude_input_in_output=True)
            other = ask(connection, PROMPT, 500, request_id="other")
            other.wait_for(3)
            tokens = {"input_ids": np.array([[0]], np.int32), "input_lengths": 1, "request_output_len": 1}
            connection.send(request("tensorrt_llm", {**tokens, "stop": True}, "mine")).finish()
            responses = call.finish()
            assert responses[-1].error is None
            text = "".join(response.text for response in responses)
            assert text
            assert (PROMPT * 4).startswith(text)
            assert not other.ended.is_set()
            other.cancel()
            wait_until_quiet(server)


def test_what_the_engine_refuses_is_said_at_once(narrow_server: Server) -> None:
    wait_until_quiet(narrow_server)
    with Grpc(narrow_server.grpc_address) as connection:
        running = [ask(connection, PROMPT, 300) for _ in range(2)]
        for call in running:
            call.wait_for(1)
        waiting = ask(connection, PROMPT, 300)
        time.sleep(2 * STEP_SECONDS)
        _, answer = generate(narrow_server.http_address, {"text_input": PROMPT, "max_tokens": 3}, BLS)
        assert "Exceeds maximum queue size" in answer["error"]
        for call in [*running, waiting]:
            call.cancel()


def test_a_dying_engine_ends_its_answers_with_an_error(tiny_engine: TinyEngine) -> None:
    with (
        Server(tiny_engine("llama"), DeploymentOptions(parameters=fake_engine(step_seconds=0.1))) as server,
        Grpc(server.grpc_address) as connection,
    ):
        calls = [ask(connection, PROMPT, 2000, stream=stream) for stream in (True, True, False)]
        calls[0].wait_for(3)
        engine = next(member for member in server.life.family if member.name.startswith(ENGINE_PROCESS))
        os.kill(engine.pid, signal.SIGKILL)
        for call in calls:
            assert "[engine_died]" in str(call.finish()[-1].error)


def test_a_drain_lets_running_answers_finish(tiny_engine: TinyEngine) -> None:
    server = Server(tiny_engine("llama"), DeploymentOptions(parameters=fake_engine(step_seconds=0.2)))
    server.start()
    with Grpc(server.grpc_address) as connection:
        call = ask(connection, PROMPT, 30)
        call.wait_for(1)
        drained: list[bool] = []
        stopping = threading.Thread(target=lambda: drained.append(server.stop(drain_seconds=60)))
        stopping.start()
        wait_for(lambda: ask(connection, PROMPT, 1).finish()[-1].error is not None)
        responses = call.finish()
        stopping.join()
    assert responses[-1].finish_reason == "length"
    assert len(responses) == 30
    assert drained == [True]
