"""What is asyncio's own: loops, tasks and their cancellation. The rest is in test_transports.py."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from inflight_client._async.http_transport import AsyncHttpTransport
from inflight_client._http.call_context import CONNECT_TIMEOUT
from inflight_client.address import Address
from inflight_client.deadline import NEVER, Deadline
from inflight_client.errors import InflightError

from tests.client._http.scripted_server import (
    END,
    SOON,
    STREAM_HEAD,
    HttpRequestSeen,
    Peer,
    answer,
    black_hole,
    event,
    scripted,
)
from tests.client._http.transports import request
from tests.client.support.leak_checks import in_loop, nothing_left, run
from tests.fixtures.errors import raises


@pytest.fixture(autouse=True)
def _no_leftovers() -> Iterator[None]:
    with nothing_left():
        yield


def _told(peer: Peer, asked: HttpRequestSeen) -> None:
    answer(peer, asked, "of ", asked.id)


def _endless(peer: Peer, asked: HttpRequestSeen) -> None:
    """One response, and then nothing."""
    peer.send(STREAM_HEAD, event(id=asked.id, text_output="a"))
    peer.wait_until_gone()


@asynccontextmanager
async def _to(url: str) -> AsyncIterator[AsyncHttpTransport]:
    transport = AsyncHttpTransport(Address.parse(url), {}, None)
    try:
        yield transport
    finally:
        await transport.close()


async def _texts(transport: AsyncHttpTransport, name: str) -> list[str | None]:
    return [response.text("text_output") async for response in transport.infer(request(name), NEVER, NEVER)]


@in_loop
async def test_sixty_four_streams_run_at_once() -> None:
    all_there = threading.Barrier(64)

    def script(peer: Peer, asked: HttpRequestSeen) -> None:
        all_there.wait(SOON)
        _told(peer, asked)

    with scripted(script) as server:
        async with _to(server.url) as transport:
            names = [f"r-{number}" for number in range(64)]
            texts = await asyncio.gather(*(_texts(transport, name) for name in names))
            assert texts == [["of ", name] for name in names]


def test_it_belongs_to_the_loop_of_its_first_call() -> None:
    with scripted(_told) as server, asyncio.Runner() as first:
        transport = AsyncHttpTransport(Address.parse(server.url), {}, None)
        assert first.run(_texts(transport, "a")) == ["of ", "a"]
        with asyncio.Runner() as second:
            for work in (_texts(transport, "b"), transport.live(NEVER), transport.close()):
                with raises(InflightError, "client_closed"):
                    second.run(work)
        assert first.run(transport.close()) is None


@pytest.mark.parametrize("by_whom", ["nobody", "a task that reads"])
@in_loop
async def test_cancelling_waits_for_nothing_and_the_server_learns_of_it(by_whom: str) -> None:
    with scripted(_endless) as server:
        async with _to(server.url) as transport:
            responses = transport.infer(request(), NEVER, NEVER)
            assert (await anext(responses)).text("text_output") == "a"
            reading = asyncio.ensure_future(anext(responses)) if by_whom != "nobody" else None
            await asyncio.sleep(0)
            responses.cancel()
            responses.cancel()
            if reading is not None:
                with raises(InflightError, "cancelled"):
                    await reading
            assert await asyncio.to_thread(server.hung_up.acquire, timeout=SOON)
            with raises(InflightError, "cancelled"):
                await anext(responses)


@pytest.mark.parametrize("how", ["cancel", "timeout"])
@in_loop
async def test_a_task_that_is_cancelled_leaves_nothing(how: str) -> None:
    def script(peer: Peer, asked: HttpRequestSeen) -> None:
        if asked.method == "GET":
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        else:
            _endless(peer, asked)

    with scripted(script) as server:
        async with _to(server.url) as transport:
            responses = transport.infer(request(), NEVER, NEVER)
            await anext(responses)
            if how == "timeout":
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await anext(responses)
            else:
                reading = asyncio.ensure_future(anext(responses))
                await asyncio.sleep(0.05)
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
            assert await asyncio.to_thread(server.hung_up.acquire, timeout=SOON)
            assert await _in_time(transport.live(Deadline(SOON))) is True


@in_loop
async def test_a_task_that_is_cancelled_while_it_connects_leaves_no_socket() -> None:
    with scripted(_endless) as server:
        async with _to(server.url) as transport:
            for turns in range(15):
                connecting = asyncio.ensure_future(_texts(transport, "r"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                connecting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await connecting
    gc.collect()  # which would warn of it


async def _in_time(work: object) -> object:
    return await asyncio.wait_for(work, SOON)  # type: ignore[arg-type]


@pytest.mark.parametrize("where", ["an answer", "a handshake", "a connection"])
def test_closing_ends_calls_that_wait(where: str) -> None:
    async def work(url: str) -> None:
        transport = AsyncHttpTransport(Address.parse(url), {}, None)
        waiting = asyncio.ensure_future(_texts(transport, "r"))
        await asyncio.sleep(0.1)
        await transport.close()
        with raises(InflightError, "client_closed"):
            await asyncio.wait_for(waiting, CONNECT_TIMEOUT / 2)  # not by that limit, then

    if where == "an answer":
        with scripted(_endless) as server:
            run(lambda: work(server.url))
    elif where == "a connection":
        with black_hole() as address:
            run(lambda: work(f"http://{address}"))
    else:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            run(lambda: work(f"https://127.0.0.1:{silent.getsockname()[1]}"))


@in_loop
async def test_a_long_answer_that_nobody_reads_makes_the_server_wait() -> None:
    """It would else lie in the client's memory."""
    sent = 0

    def script(peer: Peer, asked: HttpRequestSeen) -> None:
        nonlocal sent
        peer.send(STREAM_HEAD)
        for _ in range(3000):
            peer.send(event(id=asked.id, text_output="x" * 10_000))
            sent += 1
        peer.send(END)

    with scripted(script) as server:
        async with _to(server.url) as transport:
            responses = transport.infer(request(), NEVER, NEVER)
            await anext(responses)
            before = -1
            while before != sent:
                before = sent
                await asyncio.sleep(0.3)
            assert sent < 2000
            assert 1 + len([response async for response in responses]) == 3000
