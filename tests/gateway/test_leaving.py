"""Clients that leave, at any moment, leave nothing behind; overload and failures of the server are told as such."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from inflight.deploy.server.server import Server
from inflight.gateway.processes import GatewayProcesses
from inflight.gateway.settings import GatewaySettings
from tests.fixtures.gateway import openai_client, running_gateway
from tests.fixtures.gateway_requests import MODEL, complete, gauge, get, post
from tests.fixtures.waiting import wait_until
from tests.serving.metrics_page import page_of

LONG = 1500


def leave(gateway: GatewayProcesses, source: random.Random) -> None:
    """Send a request, or a part of it, and leave."""
    body = json.dumps(
        {
            "model": MODEL,
            "prompt": "tea " * source.randint(1, 200),
            "max_tokens": LONG,
            "stream": source.random() < 0.5,
            "n": source.choice([1, 1, 3]),
        }
    ).encode()
    lines = [
        "POST /v1/completions HTTP/1.1",
        "host: x",
        "content-type: application/json",
        f"content-length: {len(body)}",
    ]
    data = "\r\n".join([*lines, "", ""]).encode() + body
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as connection:
        connection.sendall(data if source.random() < 0.9 else data[: source.randrange(len(data))])
        if source.random() < 0.5:
            connection.settimeout(source.random() * 0.4)
            try:
                connection.recv(100)
            except TimeoutError:
                pass
        if source.random() < 0.5:  # a reset instead of an orderly end
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")


@pytest.mark.parametrize("clients", [300, pytest.param(1_000, marks=pytest.mark.slow)])
def test_clients_that_leave_at_any_moment_leave_nothing_behind(
    gateway: GatewayProcesses, hurried_server: Server, clients: int
) -> None:
    with ThreadPoolExecutor(24) as pool:
        list(pool.map(lambda number: leave(gateway, random.Random(number)), range(clients)))
    wait_until(lambda: gauge(gateway, "inflight_gateway_answers_in_flight") == 0)
    wait_until(lambda: page_of(hurried_server).quiet)
    assert complete(gateway).status == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_leaving_during_an_answer_ends_it(
    gateway: GatewayProcesses, hurried_server: Server, stream: bool, n: int
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port)
    body = {"model": MODEL, "prompt": "tea", "max_tokens": 4000, "stream": stream, "n": n}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    wait_until(lambda: page_of(hurried_server).requests["scheduled"] >= n)
    connection.close()
    wait_until(lambda: page_of(hurried_server).quiet)
    wait_until(lambda: gauge(gateway, "inflight_gateway_answers_in_flight") == 0)


def test_too_many_answers_at_a_time_are_refused_with_a_time_to_come_back(hurried_server: Server) -> None:
    with running_gateway(hurried_server, max_in_flight=4, max_waiting=2) as gateway, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: complete(gateway, max_tokens=200), range(16)))
        refused = [answer for answer in answers if answer.status != 200]
        assert refused
        for answer in refused:
            assert (answer.status, answer.error["code"]) == (429, "server_overloaded")
            assert int(answer.headers["retry-after"]) >= 1
            assert int(answer.headers["retry-after-ms"]) > 0
        wait_until(lambda: gauge(gateway, "inflight_gateway_answers_in_flight") == 0)


def test_a_burst_of_openai_clients_waits_for_its_turn(hurried_server: Server) -> None:
    with running_gateway(hurried_server, max_in_flight=8) as gateway, openai_client(gateway, max_retries=0) as client:

        def ask(number: int) -> str:
            return client.completions.create(model=MODEL, prompt=f"tea {number}", max_tokens=20).choices[0].text

        with ThreadPoolExecutor(60) as pool:
            assert all(pool.map(ask, range(60)))


def test_without_a_server_there_is_503_with_a_time_to_come_back(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        paths: dict[str, Any] = {"key_file": f"{tmp_path}/keys.json", "state_dir": str(tmp_path)}
        settings = GatewaySettings((f"127.0.0.1:{unused.getsockname()[1]}",), port=0, **paths)
        gateway = GatewayProcesses(settings, lambda line: None)
        gateway.start()
        try:
            for answer in (get(gateway, "/ready"), complete(gateway)):
                assert answer.status == 503
                assert answer.headers["retry-after"]
            assert get(gateway, "/health").status == 200
        finally:
            gateway.stop()


def test_a_killed_gateway_is_started_again_and_refuses_no_connection(hurried_server: Server) -> None:
    with running_gateway(hurried_server, workers=2) as gateway:
        for worker in list(gateway._workers):
            os.kill(worker.pid, signal.SIGKILL)
        assert get(gateway, "/health").status == 200
        wait_until(lambda: complete(gateway).status == 200)


def test_stopping_lets_open_answers_finish(hurried_server: Server) -> None:
    with running_gateway(hurried_server) as gateway:
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(complete(gateway, max_tokens=300, stream=True)))
        thread.start()
        wait_until(lambda: gauge(gateway, "inflight_gateway_answers_in_flight") == 1)
        gateway.stop(30)
        thread.join()
    assert answers[0].events[-1]["choices"][0]["finish_reason"] == "length"


def test_silence_is_broken_by_comments_that_clients_ignore(hurried_server: Server) -> None:
    with running_gateway(hurried_server, keep_alive_seconds=0.2) as gateway:
        engine = next(each for each in hurried_server.instance.process_tree if each.name.startswith("the engine"))
        body = {"model": MODEL, "prompt": "tea", "max_tokens": 4, "stream": True}
        os.kill(engine.pid, signal.SIGSTOP)
        try:
            connection = http.client.HTTPConnection("127.0.0.1", gateway.port)
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            assert response.status == 200
            assert response.readline() == b": keep-alive\n"
        finally:
            os.kill(engine.pid, signal.SIGCONT)
        with closing(connection), response:
            assert b"data: [DONE]" in response.read()
        with openai_client(gateway) as client:
            done = client.completions.create(model=MODEL, prompt="tea", max_tokens=4)
        assert done.choices[0].finish_reason == "length"


def test_a_request_with_the_same_id_cancels_no_other(gateway: GatewayProcesses) -> None:
    body = {"model": MODEL, "prompt": "tea", "max_tokens": 100}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: post(gateway, "/v1/completions", body, {"x-request-id": "same"}), range(4)))
    assert [answer.status for answer in answers] == [200] * 4
