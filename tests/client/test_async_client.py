"""The asyncio client against the same server."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from inflight_client import NO_RETRY, AsyncClient, Delta, Generation, InflightError, Usage

from tests.client.support.scripted_answers import never_ending, whole
from tests.client.support.scripted_server import error as error_response
from tests.client.support.scripted_server import response, serving
from tests.fixtures.errors import raises


def test_deltas_come_as_they_are_sent() -> None:
    async def talk(address: str) -> tuple[list[Delta], Generation]:
        async with AsyncClient(address) as client:
            return [part async for part in client.stream("tell")], await client.generate("tell")

    with serving(whole) as (_, address):
        deltas, generation = asyncio.run(talk(address))
    assert deltas == [Delta("お"), Delta(""), Delta("茶 tea"), Delta(".", "stop", Usage(3, 4))]
    assert (generation.text, generation.finish_reason, generation.usage) == ("お茶 tea.", "stop", Usage(3, 4))


def test_many_calls_at_once() -> None:
    async def talk(address: str) -> list[Generation]:
        async with AsyncClient(address) as client:
            return await asyncio.gather(*(client.generate("tell") for _ in range(40)))

    with serving(whole) as (_, address):
        assert {answer.text for answer in asyncio.run(talk(address))} == {"お茶 tea."}


def failing(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
    yield response("tea")
    yield error_response("the engine's process died (signal 9); send the request again [engine_died]")


def ending(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
    yield response("tea")


def breaking(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
    yield response("tea")
    context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")


@pytest.mark.parametrize(
    ("script", "code", "timeout"),
    [
        (failing, "engine_died", 60),
        (ending, "server_gone", 60),
        (breaking, "server_gone", 60),
        (never_ending, "deadline_exceeded", 1),
    ],
)
def test_a_broken_stream_says_so(script: Any, code: str, timeout: float) -> None:
    got: list[Delta] = []

    async def talk(address: str) -> None:
        async with AsyncClient(address, retry=NO_RETRY) as client:
            async for part in client.stream("tell", timeout=timeout):
                got.append(part)

    with serving(script) as (_, address), raises(InflightError, code):
        asyncio.run(talk(address))
    assert got[0].text.strip() == "tea"


def test_nobody_there_is_said_so() -> None:
    async def talk() -> None:
        async with AsyncClient("127.0.0.1:1", retry=NO_RETRY) as client:
            with raises(InflightError, "server_unreachable", naming="127.0.0.1"):
                await client.generate("tell")

    asyncio.run(talk())


def test_leaving_a_stream_early_cancels_it_on_the_server() -> None:
    async def talk(address: str) -> None:
        async with AsyncClient(address) as client:
            stream = client.stream("tell")
            async for _ in stream:
                break
            await stream.aclose()

    with serving(never_ending) as (server, address):
        asyncio.run(talk(address))
        assert server.cancelled.wait(60)


def test_a_call_that_failed_is_let_end_before_it_is_left() -> None:
    still_there = queue.SimpleQueue[bool]()

    def fails(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield error_response("no such word [invalid_parameter]")
        time.sleep(0.1)
        still_there.put(context.is_active())

    async def talk(address: str) -> None:
        async with AsyncClient(address) as client:
            with raises(InflightError, "invalid_parameter"):
                await client.generate("tell")

    with serving(fails) as (_, address):
        asyncio.run(talk(address))
    assert still_there.get(timeout=60)
