"""Both clients against a real gRPC server that answers well, badly, or not at all."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from inflight_client import NO_RETRY, Client, Delta, InflightError, Usage

from tests.client.support.client_variants import ClientVariant
from tests.client.support.scripted_answers import never_ending, whole
from tests.client.support.scripted_server import error, response, serving
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until

both_clients = pytest.mark.parametrize("way", [ClientVariant("grpc", aio) for aio in (False, True)], ids=str)


@both_clients
def test_deltas_come_as_they_are_sent(way: ClientVariant) -> None:
    with serving(whole) as (server, address), way.client_at(address) as client:
        deltas = list(client.stream("tell", max_tokens=9))
    assert deltas == [Delta("お"), Delta(""), Delta("茶 tea"), Delta(".", "stop", Usage(3, 4))]
    (request,) = server.requests
    assert request.model_name == "ensemble"


@both_clients
def test_a_whole_answer_joins_them(way: ClientVariant) -> None:
    with serving(whole) as (_, address), way.client_at(address) as client:
        answer = client.generate("tell", request_id="mine", return_token_ids=False)
    assert (answer.text, answer.finish_reason, answer.usage) == ("お茶 tea.", "stop", Usage(3, 4))
    assert (answer.request_id, answer.token_ids, answer.timings.attempts) == ("mine", None, 1)
    assert 0 < answer.timings.first_token <= answer.timings.total


@both_clients
def test_an_error_in_mid_stream_comes_after_the_text_before_it(way: ClientVariant) -> None:
    def script(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield response("tea")
        yield error(
            "in ensemble 'ensemble', the engine's process died (signal 9); send the request again [engine_died]"
        )

    with serving(script) as (_, address), way.client_at(address) as client:
        stream = client.stream("tell")
        assert next(stream).text == "tea"
        with raises(InflightError, "engine_died", naming="signal 9") as raised:
            next(stream)
    assert raised.value.retry


@both_clients
@pytest.mark.parametrize("how_many", [0, 1])
def test_a_stream_that_ends_without_a_reason_is_an_error(way: ClientVariant, how_many: int) -> None:
    """A server that shuts down may end a stream with status OK."""

    def script(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield from [response("tea")] * how_many

    with serving(script) as (_, address), way.client_at(address, retry=NO_RETRY) as client:
        for call in (lambda: list(client.stream("tell")), lambda: client.generate("tell")):
            with raises(InflightError, "server_gone"):
                call()


@both_clients
def test_a_broken_connection_is_told_from_a_server_that_was_never_there(way: ClientVariant) -> None:
    def script(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield response("tea")
        context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    with serving(script) as (_, address), way.client_at(address, retry=NO_RETRY) as client:
        stream = client.stream("tell")
        assert next(stream).text == "tea"
        with raises(InflightError, "server_gone", naming="Socket closed"):
            next(stream)
    with way.client_at(address, retry=NO_RETRY) as client:
        assert not client.ready()
        with raises(InflightError, "server_unreachable", naming=address):
            client.generate("tell")


def test_a_proxy_is_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        # It accepts connections, and answers none.
        for name in ("grpc_proxy", "http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        with serving(whole) as (_, address), Client(address) as client:
            assert client.generate("tell", timeout=60).text == "お茶 tea."


@both_clients
def test_the_time_allowed_is_for_the_whole_answer(way: ClientVariant) -> None:
    started = time.monotonic()
    with serving(never_ending) as (_, address), way.client_at(address) as client:
        client.health()  # the deployment is known, however busy the machine is
        with raises(InflightError, "deadline_exceeded"):
            client.generate("tell", timeout=0.2)
        for seconds in (0.5, 4, 16):  # a busy machine gets more time
            stream = client.stream("tell", timeout=seconds)
            with raises(InflightError, "deadline_exceeded"):
                list(stream)
            if stream.text:
                break
        assert stream.text.startswith("tea ")
    assert time.monotonic() - started < 60


def test_one_thread_reads_a_stream_at_a_time() -> None:
    go_on = threading.Event()

    def script(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        assert go_on.wait(60)
        yield response("tea", "stop")

    with serving(script) as (server, address), Client(address) as client, ThreadPoolExecutor(1) as pool:
        stream = client.stream("tell")
        reading = pool.submit(next, stream)
        wait_until(lambda: server.requests)
        with pytest.raises(RuntimeError, match="another thread reads"):
            next(stream)
        go_on.set()
        assert reading.result(60).text == "tea"


@both_clients
def test_stopping_an_answer_that_was_given_up_is_retried_while_the_queue_is_full(
    way: ClientVariant, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "_async" if way.aio else "_sync"
    monkeypatch.setattr(f"inflight_client.{module}.connection._ABANDON_TIMEOUT", 60.0)
    stops: list[str] = []

    def script(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        if not any(tensor.name == "stop" for tensor in request.inputs):
            yield from never_ending(request, context)
            return
        stops.append(request.id)
        yield error("Exceeds maximum queue size" if len(stops) < 3 else "the request was stopped [cancelled]")

    with serving(script) as (_, address), way.client_at(address) as client:
        client.health()  # the deployment is known, however busy the machine is
        with raises(InflightError, "deadline_exceeded", naming="0.5 seconds"):
            client.generate("tell", request_id="mine", timeout=0.5)
    assert len(stops) >= 3  # one more if the request was sent late
    assert set(stops) == {"mine"}


@both_clients
def test_a_call_that_failed_is_let_end_before_it_is_left(way: ClientVariant) -> None:
    still_there = queue.SimpleQueue[bool]()

    def fails(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield error("no such word [invalid_parameter]")
        time.sleep(0.1)
        still_there.put(context.is_active())

    with (
        serving(fails) as (_, address),
        way.client_at(address) as client,
        raises(InflightError, "invalid_parameter"),
    ):
        client.generate("tell")
    assert still_there.get(timeout=60)


def test_ready_is_asked_for_the_model() -> None:
    with serving(whole) as (_, address):
        with Client(address) as client:
            assert client.ready()
        with Client(address, "nobody") as client:
            assert not client.ready()
