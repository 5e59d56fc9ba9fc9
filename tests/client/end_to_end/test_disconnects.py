"""An answer that is left in the middle, in any way, leaves nothing on the server or in this process."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from inflight_client import AsyncClient, Client, InflightError

from inflight.deploy.server.server import Server
from tests.client.support.client_variants import ClientVariant, SyncCaller, every_client
from tests.client.support.expected_answers import LONG, PROMPT, TOO_LONG, expected
from tests.client.support.leak_checks import nothing_left, run
from tests.serving.metrics_page import page_when

SOON = 30.0
both_protocols = pytest.mark.parametrize(
    "way", [ClientVariant("grpc", True), ClientVariant("http", True)], ids=lambda way: way.protocol
)


@pytest.fixture
def served(slow_server: Server) -> Iterator[Server]:
    """The server; behind the test nothing may be left."""
    with nothing_left(slow_server):
        yield slow_server


def ends_soon(server: Server) -> None:
    """Nothing runs, long before LONG tokens could have been said."""
    began = time.monotonic()
    page_when(server, lambda page: page.quiet)
    assert time.monotonic() - began < SOON


class LoopError(Exception):
    """What goes wrong in a caller's own loop."""


def by_breaking_out(caller: SyncCaller) -> None:
    for _ in caller.stream(PROMPT, max_tokens=LONG):
        break


def by_closing(caller: SyncCaller) -> None:
    stream = caller.stream(PROMPT, max_tokens=LONG)
    next(stream)
    stream.close()
    stream.close()
    assert next(stream, None) is None


def by_an_error_of_its_own(caller: SyncCaller) -> None:
    for _ in caller.stream(PROMPT, max_tokens=LONG):
        raise LoopError


def by_forgetting(caller: SyncCaller) -> None:
    next(caller.stream(PROMPT, max_tokens=LONG))


def by_leaving_many(caller: SyncCaller) -> None:
    with closing(caller.generate_many([PROMPT] * 6, max_tokens=4, concurrency=2)) as answers:  # type: ignore[type-var]
        next(answers)


@every_client
@pytest.mark.parametrize(
    ("leave", "raises"),
    [
        (by_breaking_out, None),
        (by_closing, None),
        pytest.param(by_an_error_of_its_own, LoopError, marks=pytest.mark.slow),
        (by_forgetting, None),
        (by_leaving_many, None),
    ],
)
def test_the_client_goes_on_and_nothing_else_does(
    way: ClientVariant, served: Server, leave: Callable[[SyncCaller], None], raises: type[BaseException] | None
) -> None:
    with way.client(served) as caller:
        if raises is None:
            leave(caller)
        else:
            with pytest.raises(raises):
                leave(caller)
        gc.collect()
        answer = caller.generate(PROMPT, max_tokens=4, timeout=SOON)
        page_when(served, lambda page: page.quiet)
    assert answer.text == expected(served, 4)


@every_client
def test_leaving_many_ends_the_whole_answers_on_their_way(way: ClientVariant, served: Server) -> None:
    with way.client(served) as caller:
        for at_work in (False, True):
            prompts = [TOO_LONG, PROMPT, PROMPT]  # the first one fails at once
            # The deadline ends what reaches the engine of a busy machine only after the request to stop it.
            answers = caller.generate_many(prompts, max_tokens=LONG, concurrency=3, return_errors=True, timeout=20)
            with closing(answers):  # type: ignore[type-var]
                assert isinstance(next(answers), InflightError)
                if at_work and not way.aio:  # whose loop does not run now; else the engine may not have seen them
                    page_when(served, lambda page: page.requests["active"] == 2)
            ends_soon(served)


@every_client
@pytest.mark.parametrize("leave", [by_forgetting, pytest.param(by_breaking_out, marks=pytest.mark.slow)])
def test_a_client_is_closed_with_streams_that_nobody_closed(
    way: ClientVariant, served: Server, leave: Callable[[SyncCaller], None]
) -> None:
    with way.client(served) as caller:
        held = [caller.stream(PROMPT, max_tokens=LONG) for _ in range(3)]
        for stream in held:
            next(stream)
        leave(caller)
    if not way.aio:  # where the loop has ended too
        for stream in held:
            with pytest.raises(InflightError) as caught:
                list(stream)
            assert caught.value.code == "client_closed"


@pytest.mark.parametrize(
    "way", [ClientVariant("grpc", False), ClientVariant("http", False)], ids=lambda way: way.protocol
)
def test_closing_a_client_wakes_the_threads_that_wait_for_it(way: ClientVariant, served: Server) -> None:
    client = Client(way.url(way.port(served)))
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(client.stream(PROMPT, max_tokens=LONG).read) for _ in range(4)]
        page_when(served, lambda page: page.requests["active"] == 4)
        client.close()
        for each in waiting:
            error = each.exception(timeout=SOON)
            assert isinstance(error, InflightError)
            assert error.code == "client_closed"
    with pytest.raises(InflightError) as caught:
        client.generate(PROMPT)
    assert caught.value.code == "client_closed"


async def a_cancelled_task(client: AsyncClient) -> None:
    task = asyncio.create_task(client.stream(PROMPT, max_tokens=LONG).read())
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def a_cancelled_reader(client: AsyncClient) -> None:
    async def read() -> None:
        async for _ in client.stream(PROMPT, max_tokens=LONG):
            begun.set()

    begun = asyncio.Event()
    task = asyncio.create_task(read())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def time_of_the_callers_own(client: AsyncClient) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await client.stream(PROMPT, max_tokens=LONG).read()


async def a_cancelled_whole(client: AsyncClient) -> None:
    task = asyncio.create_task(client.generate(PROMPT, max_tokens=LONG))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def time_of_the_callers_own_for_a_whole(client: AsyncClient) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await client.generate(PROMPT, max_tokens=LONG)


async def a_failed_group(client: AsyncClient) -> None:
    async def fail() -> None:
        await asyncio.sleep(0.2)
        raise LoopError

    async def all_at_once() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            for _ in range(4):
                group.create_task(client.stream(PROMPT, max_tokens=LONG).read())

    with pytest.raises(BaseExceptionGroup):  # noqa: F821  # of Python 3.11
        await all_at_once()


@both_protocols
@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(a_cancelled_task, marks=pytest.mark.slow),
        a_cancelled_reader,
        a_cancelled_whole,
        pytest.param(time_of_the_callers_own, marks=pytest.mark.slow),
        time_of_the_callers_own_for_a_whole,
        a_failed_group,
    ],
)
def test_asyncio_may_cancel_at_any_time(
    way: ClientVariant, served: Server, leave: Callable[[AsyncClient], Awaitable[None]]
) -> None:
    async def work() -> str:
        async with AsyncClient(way.url(way.port(served))) as client:
            await leave(client)
            return (await client.generate(PROMPT, max_tokens=4, timeout=SOON)).text

    began = time.monotonic()
    assert run(work) == expected(served, 4)
    assert time.monotonic() - began < SOON


@both_protocols
def test_a_loop_may_end_with_streams_open(way: ClientVariant, served: Server) -> None:
    """A program that ends so closes neither stream nor client, and asyncio cancels what runs."""
    held: list[object] = []

    async def work() -> None:
        client = AsyncClient(way.url(way.port(served)))
        stream = client.stream(PROMPT, max_tokens=LONG)
        await anext(stream)
        held.extend([client, stream, asyncio.create_task(client.stream(PROMPT, max_tokens=LONG).read())])
        await asyncio.sleep(0.2)

    asyncio.run(work())
    held.clear()
    gc.collect()
