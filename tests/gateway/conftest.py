"""Gateways in front of shared servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import openai
import pytest

from inflight.deploy.server.server import Server
from inflight.gateway.processes import GatewayProcesses
from inflight.gateway.settings import GatewaySettings
from tests.fixtures.waiting import wait_until
from tests.gateway.http import get

GatewayFactory = Callable[..., AbstractContextManager[GatewayProcesses]]


@contextmanager
def running_gateway(*servers: Server, **settings: Any) -> Iterator[GatewayProcesses]:
    """A gateway on a free port that is ready."""
    addresses = tuple(f"{each.grpc_address},metrics=http://{each.metrics_address}/metrics" for each in servers)
    with TemporaryDirectory() as directory:
        values = {"key_file": f"{directory}/keys.json", "state_dir": f"{directory}/state", **settings}
        gateway = GatewayProcesses(GatewaySettings(addresses, port=0, **values), lambda line: None)
        gateway.start()
        try:
            wait_until(lambda: get(gateway, "/ready").status == 200)
            yield gateway
        finally:
            gateway.stop()


@pytest.fixture(scope="session")
def gateway(hurried_server: Server) -> Iterator[GatewayProcesses]:
    """In front of the fake engine, whose answers repeat the prompt in steps of 1 to 5 ms. Shared."""
    with running_gateway(hurried_server) as running:
        yield running


@pytest.fixture(scope="session")
def model_gateway(server: Server) -> Iterator[GatewayProcesses]:
    """In front of a compiled model. Shared."""
    with running_gateway(server) as running:
        yield running


@pytest.fixture
def client(gateway: GatewayProcesses) -> Iterator[openai.OpenAI]:
    with openai_client(gateway) as found:
        yield found


def openai_client(gateway: GatewayProcesses, **settings: Any) -> openai.OpenAI:
    """OpenAI's client, which checks all that it reads."""
    values = {"api_key": "none", "max_retries": 0, "timeout": 60, **settings}
    return openai.OpenAI(base_url=gateway.url, _strict_response_validation=True, **values)
