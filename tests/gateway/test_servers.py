"""Servers of different models behind one gateway."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from inflight.gateway.processes import GatewayProcesses
from tests.fixtures.engines import TinyEngine
from tests.fixtures.gateway import openai_client, running_gateway
from tests.fixtures.gateway_requests import MODEL, Answer, complete, get
from tests.fixtures.server import fake_engine
from tests.fixtures.waiting import wait_until

OTHER = "tiny-qwen2"


@pytest.fixture(scope="module")
def other_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    with Server(tiny_engine("qwen2"), DeploymentOptions(parameters=fake_engine())) as running:
        yield running


def many(gateway: GatewayProcesses, model: str) -> list[Answer]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda _: complete(gateway, model=model), range(16)))


def test_each_model_is_answered_by_its_server(hurried_server: Server, other_server: Server) -> None:
    with running_gateway(hurried_server, other_server) as gateway:
        wait_until(lambda: {each["id"] for each in get(gateway, "/v1/models").json["data"]} == {MODEL, OTHER})
        engines = set()
        for model in (MODEL, OTHER):
            found = {
                (each.status, each.json["model"], each.json["system_fingerprint"]) for each in many(gateway, model)
            }
            ((status, answered, engine),) = found
            assert (status, answered) == (200, model)
            engines.add(engine)
        assert len(engines) == 2


def test_a_model_without_room_holds_up_no_other(hurried_server: Server, other_server: Server) -> None:
    with running_gateway(hurried_server, other_server, max_in_flight=2, max_waiting=0) as gateway:
        wait_until(lambda: complete(gateway, model=OTHER, max_tokens=1).status == 200)
        wait_until(lambda: complete(gateway, max_tokens=1).status == 200)
        with openai_client(gateway) as client:
            messages: Any = [{"role": "user", "content": "tea"}]
            stream = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1900, stream=True)
            next(iter(stream))
            assert (complete(gateway).status, complete(gateway, model=OTHER).status) == (429, 200)
            stream.close()


def test_one_name_never_stands_for_two_models(hurried_server: Server, other_server: Server) -> None:
    with running_gateway(hurried_server, other_server, served_model_name="tea") as gateway:
        until = time.monotonic() + 1.5  # by then both have been found
        answers: list[Answer] = []
        while time.monotonic() < until:
            answers += many(gateway, "tea")
        assert {answer.status for answer in answers} == {200}
        assert len({answer.json["system_fingerprint"] for answer in answers}) == 1


@contextmanager
def proxy_of_text_models(address: str) -> Iterator[str]:
    """A proxy before Triton's HTTP that denies the model of token ids, as docs/engine.md advises."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if "/models/tensorrt_llm/" in f"{self.path}/":
                self.answer(403, {}, b"")
                return
            connection = HTTPConnection(address)
            connection.request(self.command, self.path, body, dict(self.headers))
            response = connection.getresponse()
            headers = {"Content-Type", "Inference-Header-Content-Length"}
            self.answer(response.status, {k: v for k, v in response.getheaders() if k in headers}, response.read())
            connection.close()

        def do_POST(self) -> None:
            self.do_GET()

        def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{proxy.server_port}"
        proxy.shutdown()
        thread.join()


def test_where_token_ids_are_denied_it_sends_text(hurried_server: Server) -> None:
    with proxy_of_text_models(hurried_server.http_address) as address, running_gateway(address) as gateway:
        answer = complete(gateway, prompt="tea", max_tokens=4)
        assert (answer.status, answer.json["usage"]["completion_tokens"]) == (200, 4)


def test_a_killed_server_loses_no_request_that_had_sent_nothing(
    hurried_server: Server, other_server: Server, tmp_path: Path
) -> None:
    (tmp_path / "routes.yaml").write_text(f"routes: {{both: {{targets: [{{model: {MODEL}}}, {{model: {OTHER}}}]}}}}")
    answers: list[Answer] = []
    with (
        running_gateway(hurried_server, other_server, routes=str(tmp_path / "routes.yaml")) as gateway,
        ThreadPoolExecutor(16) as pool,
    ):

        def is_spread() -> bool:
            answers.extend(found := many(gateway, "both"))
            targets = Counter(each.headers["x-inflight-target"] for each in found)
            return len(targets) == 2 and min(targets.values()) >= 3

        wait_until(is_spread)
        asking = [
            pool.submit(complete, gateway, f"tea {number}", model="both", max_tokens=100) for number in range(150)
        ]
        wait_until(lambda: sum(each.done() for each in asking) > 30)
        os.kill(other_server.pid, signal.SIGKILL)
        answers += [each.result() for each in asking]
        wait_until(is_spread)
    assert Counter(each.status for each in answers) == {200: len(answers)}
