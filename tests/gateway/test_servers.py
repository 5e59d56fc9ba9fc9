"""Servers of different models behind one gateway."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from inflight.gateway.processes import GatewayProcesses
from tests.fixtures.engines import TinyEngine
from tests.fixtures.gateway import running_gateway
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


def test_one_name_never_stands_for_two_models(hurried_server: Server, other_server: Server) -> None:
    with running_gateway(hurried_server, other_server, served_model_name="tea") as gateway:
        until = time.monotonic() + 1.5  # by then both have been found
        answers: list[Answer] = []
        while time.monotonic() < until:
            answers += many(gateway, "tea")
        assert {answer.status for answer in answers} == {200}
        assert len({answer.json["system_fingerprint"] for answer in answers}) == 1
