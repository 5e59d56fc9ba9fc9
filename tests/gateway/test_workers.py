"""The metrics of a gateway of several processes are those of all of them, whichever answers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import openai
import psutil
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

from inflight.deploy.server.server import Server
from inflight.gateway.processes import GatewayProcesses
from tests.fixtures.gateway import openai_client, running_gateway
from tests.fixtures.gateway_requests import MODEL, complete, gauge
from tests.fixtures.waiting import wait_until

REQUESTS = 30
PAGES = 10


@pytest.fixture
def pair(hurried_server: Server) -> Iterator[GatewayProcesses]:
    with running_gateway(hurried_server, workers=2) as running:
        yield running


def tokens(gateway: GatewayProcesses) -> float:
    return gauge(gateway, "inflight_gateway_tokens_total")


def long_stream(client: openai.OpenAI) -> openai.Stream[ChatCompletionChunk]:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "tea"}]
    return client.chat.completions.create(model=MODEL, messages=messages, max_tokens=3000, stream=True)


def workers() -> set[int]:
    return {
        process.pid
        for process in psutil.Process().children()
        if "inflight.gateway.server" in " ".join(process.cmdline())
    }


def test_every_page_is_the_sum_over_processes(pair: GatewayProcesses) -> None:
    used = complete(pair).json["usage"]["total_tokens"]
    assert {complete(pair).status for _ in range(REQUESTS - 1)} == {200}
    wait_until(lambda: tokens(pair) == REQUESTS * used)
    assert {tokens(pair) for _ in range(PAGES)} == {REQUESTS * used}
    seconds = "inflight_gateway_time_to_first_token_seconds_count"
    assert {gauge(pair, seconds) for _ in range(PAGES)} == {REQUESTS}


def test_answers_in_flight_are_summed_and_those_of_a_killed_process_forgotten(hurried_server: Server) -> None:
    before = workers()
    with running_gateway(hurried_server, workers=2) as pair, openai_client(pair, max_retries=20) as client:
        complete(pair)
        counted = tokens(pair)
        streams = [long_stream(client) for _ in range(4)]
        for stream in streams:
            next(iter(stream))
        assert {gauge(pair, "inflight_gateway_answers_in_flight") for _ in range(PAGES)} == {4}
        for pid in workers() - before:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: _in_flight(pair) == 0)
        assert tokens(pair) >= counted
        for stream in streams:
            stream.close()


def _in_flight(gateway: GatewayProcesses) -> float | None:
    try:
        return gauge(gateway, "inflight_gateway_answers_in_flight")
    except OSError:  # a connection that the killed process had accepted
        return None
