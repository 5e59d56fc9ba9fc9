"""The images' health check, against a real server that is well, full, and stuck."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from inflight.deploy.server.process import ENGINE_PROCESS
from inflight.deploy.server.server import Server
from tests.docker.entrypoint_container import health
from tests.fixtures.crashes import shared_server
from tests.fixtures.engines import TinyEngine
from tests.fixtures.open_streams import TIMEOUT, open_streams
from tests.fixtures.ports import free_port
from tests.fixtures.server import ENDLESS, paced
from tests.fixtures.waiting import wait_until


@pytest.fixture
def full_server(tiny_engine: TinyEngine) -> Iterator[Server]:
    """One with a single place, which a long answer has taken, and a queue of one."""
    options = replace(paced(), max_num_sequences=1, max_queue_size=1)
    with shared_server(tiny_engine("llama"), options) as running:
        open_streams(running.grpc_address, count=1, max_tokens=ENDLESS)
        yield running


def test_a_full_server_is_healthy_until_no_text_comes_out(full_server: Server) -> None:
    """The check's request waits, and once one waits, the next is refused: in both cases the text that comes counts."""
    port = str(full_server.ports.http)
    for _ in range(2):
        assert health(port, seconds=3).returncode == 0
    (engine,) = (member.pid for member in full_server.instance.process_tree if member.name.startswith(ENGINE_PROCESS))
    os.kill(engine, signal.SIGSTOP)
    try:
        wait_until(lambda: at_rest(full_server))  # text that was on its way has come
        stuck = health(port, seconds=3)
    finally:
        os.kill(engine, signal.SIGCONT)
    assert stuck.returncode == 1
    assert stuck.stderr.startswith("Unhealthy: it is ready, but no answer comes out of it (")
    assert health(port, seconds=TIMEOUT).returncode == 0


def at_rest(server: Server) -> bool:
    before = server.instance.probe.answer_count("generate")
    time.sleep(0.5)
    return server.instance.probe.answer_count("generate") == before


def test_nobody_is_there() -> None:
    port = str(free_port())
    found = health(port)
    assert (found.returncode, found.stderr) == (1, f"Unhealthy: nothing is ready at 127.0.0.1:{port}.\n")


@pytest.mark.parametrize(
    ("variables", "host"),
    [
        ({"INFLIGHT_SERVE_HOST": "127.0.0.2"}, "127.0.0.2"),
        ({"INFLIGHT_SERVE_HOST": "127.0.0.2", "INFLIGHT_SERVE_HTTP_HOST": "127.0.0.3"}, "127.0.0.3"),
        ({"INFLIGHT_SERVE_HOST": "127.0.0.2", "INFLIGHT_SERVE_GRPC_TLS_CA": "/ca.pem"}, "127.0.0.1"),
    ],
)
def test_it_asks_where_http_listens(variables: dict[str, str], host: str) -> None:
    assert f" at {host}:1." in health("1", 10.0, **variables).stderr


def test_a_port_that_is_none() -> None:
    found = health("http")
    assert (found.returncode, found.stderr.count("\n")) == (1, 1)
    assert found.stderr.startswith("Unhealthy: INFLIGHT_SERVE_HTTP_PORT is 'http', which is no port")
