"""One gRPC transport serves the calls of many threads, and starts none itself."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from inflight_client import InflightError
from inflight_client._grpc.sync_transport import GrpcTransport
from inflight_client.address import Address
from inflight_client.deadline import NEVER, Deadline

from tests.client._grpc.scripted_calls import SOON, script
from tests.client._grpc.transports import request, serving_at
from tests.client.support import scripted_server
from tests.fixtures.errors import raises

THREADS = 8


def test_open_calls_need_no_threads() -> None:
    with serving_at(script) as where:
        transport = GrpcTransport(Address.parse(where), {}, None)
        before = set(threading.enumerate())
        calls = [transport.infer(request("stuck"), NEVER, Deadline(SOON)) for _ in range(THREADS)]
        for responses in calls:
            next(responses)
        assert set(threading.enumerate()) <= before
        transport.close()


@pytest.mark.parametrize(("ends", "code"), [("one", "cancelled"), ("all", "client_closed")])
def test_a_thread_that_waits_is_told_that_another_ended_its_call(ends: str, code: str) -> None:
    with scripted_server.serving(script) as (server, where), ThreadPoolExecutor(1) as pool:
        transport = GrpcTransport(Address.parse(where), {}, None)
        responses = transport.infer(request("stuck"), NEVER, NEVER)
        next(responses)
        waiting = pool.submit(next, responses)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.1)
        (responses if ends == "one" else transport).close()
        with raises(InflightError, code):
            waiting.result(timeout=SOON)
        assert server.cancelled.wait(SOON)
        transport.close()
        responses.close()


def test_a_call_that_is_left_leaves_nothing_in_the_connection() -> None:
    """What gRPC keeps of a call until its end was read: a connection closed with some of it would stay open."""
    with scripted_server.serving(script) as (server, where):
        transport = GrpcTransport(Address.parse(where), {}, None)
        for _ in range(3):
            responses = transport.infer(request("stuck"), NEVER, NEVER)
            next(responses)
            responses.close()
            with pytest.raises(InflightError):
                next(responses)
            assert not responses._call._state.due
        assert len(server.requests) == 3
        transport.close()
