"""Deadlines: no peer holds a call past its own, whatever it does."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from inflight_client._http.async_network import AsyncDeadlineNetwork
from inflight_client._http.call_context import CallContext
from inflight_client._http.sync_network import DeadlineNetwork
from inflight_client.deadline import Deadline
from inflight_client.errors import InflightError
from inflight_client.transport import Tensor

from tests.client._http.scripted_server import (
    END,
    SOON,
    STREAM_HEAD,
    HttpRequestSeen,
    Peer,
    answer,
    black_hole,
    chunk,
    event,
    scripted,
    whole,
)
from tests.client._http.transports import request
from tests.client.support.leak_checks import nothing_left
from tests.client.support.transports import TransportVariant, both_http
from tests.fixtures.errors import raises
from tests.fixtures.host_names import resolve_examples


@pytest.fixture(autouse=True)
def _no_leftovers() -> Iterator[None]:
    with nothing_left():
        yield


def test_a_peer_that_vanishes_is_noticed_without_a_deadline() -> None:
    """The kernel asks after it; nothing here can take a machine away to see that."""

    async def asyncios(port: int) -> None:
        network = AsyncDeadlineNetwork()
        with exchange.active():
            aio = await network.connect_tcp("127.0.0.1", port)
        assert _asks_after(aio.get_extra_info("socket"))
        await aio.aclose()
        await network.wait_closed()

    exchange = CallContext("here", Deadline(SOON))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with exchange.active():
            stream = DeadlineNetwork().connect_tcp("127.0.0.1", port)
        assert _asks_after(stream.get_extra_info("socket"))
        stream.close()
        asyncio.run(asyncios(port))


def _asks_after(sock: socket.socket) -> bool:
    idle = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1 and idle <= 60


_STALLS: dict[str, Callable[[Peer], object]] = {
    "nothing": lambda peer: None,
    "a head that trickles": lambda peer: peer.trickle(STREAM_HEAD[:-2] + b"x: y\r\n" * 999),
    "a head": lambda peer: peer.send(STREAM_HEAD),
    "an event that trickles": lambda peer: peer.trickle(STREAM_HEAD + chunk(b"data: " + b"x" * 9999)),
    "comments": lambda peer: peer.trickle(STREAM_HEAD + chunk(b": x\n\n") * 999),
    "an error that trickles": lambda peer: peer.trickle(whole("400 No", b"x" * 9999)),
}


def _looked_up(address: str) -> object:
    host, _, port = address.rpartition(":")
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]


@both_http
class TestDeadlines:
    @pytest.mark.parametrize(("which", "kind"), [("first", "nothing"), *(("whole", kind) for kind in _STALLS)])
    def test_no_peer_holds_a_call_past_its_deadline(self, way: TransportVariant, kind: str, which: str) -> None:
        def script(peer: Peer, asked: HttpRequestSeen) -> None:
            _STALLS[kind](peer)
            peer.wait_until_gone()

        started = time.monotonic()
        with scripted(script) as server, way.to(server.url) as caller, raises(InflightError, "deadline_exceeded"):
            caller.texts(request(), **{which: Deadline(0.1)})
        assert 0.1 <= time.monotonic() - started < SOON / 2

    def test_the_first_response_may_have_less_time_than_the_last(self, way: TransportVariant) -> None:
        first = Deadline(0.7)

        def script(peer: Peer, asked: HttpRequestSeen) -> None:
            peer.send(STREAM_HEAD, event(id="r-1", text_output="a"))
            time.sleep((first.left() or 0) + 0.01)
            peer.send(event(id="r-1", text_output="b"), END)

        with scripted(script) as server, way.to(server.url) as caller:
            assert caller.texts(request(), Deadline(SOON), first) == ["a", "b"]
            with raises(InflightError, "deadline_exceeded", naming="first"):
                caller.texts(request(), Deadline(SOON, "whole"), Deadline(1e-9, "first"))

    def test_a_peer_that_does_not_read_is_not_waited_for(self, way: TransportVariant) -> None:
        silent = threading.Event()

        def never_reads(peer: Peer) -> None:
            silent.wait(SOON)

        long = request(text_input=Tensor("BYTES", (1, 1), ("x" * 20_000_000,)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Peer, "asked", never_reads)
            with scripted(answer) as server, way.to(server.url) as caller:
                started = time.monotonic()
                with pytest.raises(InflightError) as caught:
                    caller.texts(long, Deadline(0.3))
                assert time.monotonic() - started < SOON / 2
                silent.set()
        assert caught.value.code == "deadline_exceeded"

    def test_nor_one_that_does_not_answer_at_all(self, way: TransportVariant) -> None:
        started = time.monotonic()
        with black_hole() as address, way.to(f"http://{address}") as caller, raises(InflightError, "deadline_exceeded"):
            caller.texts(request(), Deadline(0.1))
        assert time.monotonic() - started < SOON / 2

    def test_one_address_that_does_not_answer_leaves_time_for_the_next(
        self, way: TransportVariant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with black_hole() as silent, scripted(answer) as server:
            found = [_looked_up(address) for address in (silent, server.address)]
            resolve_examples(monkeypatch, lambda *arguments, **options: found)
            with way.to("http://two.example") as caller:
                assert caller.texts(request(), Deadline(2)) == []

    @pytest.mark.parametrize("method", ["live", "index", "metadata"])
    def test_questions_keep_to_theirs(self, way: TransportVariant, method: str) -> None:
        def script(peer: Peer, asked: HttpRequestSeen) -> None:
            peer.trickle(whole("200 OK", b" " * 9999))

        with scripted(script) as server, way.to(server.url) as caller:
            arguments = ["ensemble"] if method == "metadata" else []
            with pytest.raises(InflightError) as caught:
                caller.ask(method, *arguments, Deadline(0.1))
        assert caught.value.code == "deadline_exceeded"

    def test_a_name_that_is_looked_up_for_ever(self, way: TransportVariant, monkeypatch: pytest.MonkeyPatch) -> None:
        over = threading.Event()
        resolve_examples(monkeypatch, lambda *arguments, **options: over.wait(SOON) and [])
        with way.to("http://nobody.example:8000") as caller:
            with pytest.raises(InflightError) as caught:
                caller.texts(request(), Deadline(0.1))
            over.set()
        assert caught.value.code == "deadline_exceeded"


@pytest.mark.parametrize(
    ("error", "code", "retry"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "host_not_found", False),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), "server_unreachable", True),
    ],
)
@both_http
def test_a_name_that_does_not_exist_is_not_looked_up_again(
    way: TransportVariant, error: OSError, code: str, retry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(*arguments: object, **options: object) -> None:
        raise error

    resolve_examples(monkeypatch, look_up)
    url = "http://nobody.example:8000"
    with way.to(url) as caller, raises(InflightError, code, naming=url) as caught:
        caller.texts(request())
    assert caught.value.retry == retry
