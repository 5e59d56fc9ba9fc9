"""Closing ends a call whatever it waits for: its turn to be sent again, or a server that does not describe itself."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest
from inflight_client import AsyncClient, Client, ClientClosed, InflightError, Retry

SLOW = Retry(wait_initial=60, wait_max=60, timeout=600)
SOON = 30.0


@pytest.fixture
def nobody() -> str:
    """An address where no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return f"127.0.0.1:{port}"


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_stream_that_waits_to_be_sent_again_is_closed_at_once(nobody: str, scheme: str) -> None:
    with Client(f"{scheme}://{nobody}", retry=SLOW) as client:
        stream = client.stream("tell")
        timer = threading.Timer(0.3, stream.close)
        timer.start()
        started = time.monotonic()
        with pytest.raises(InflightError):
            next(stream)
        timer.join()
    assert time.monotonic() - started < SOON


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_so_is_one_of_asyncio(nobody: str, scheme: str) -> None:
    async def talk() -> None:
        async with AsyncClient(f"{scheme}://{nobody}", retry=SLOW) as client:
            stream = client.stream("tell")
            reading = asyncio.create_task(anext(stream, None))
            await asyncio.sleep(0.3)
            await stream.close()
            assert await asyncio.wait_for(reading, SOON) is None

    asyncio.run(talk())


def test_one_task_reads_a_stream_at_a_time(nobody: str) -> None:
    async def talk() -> None:
        async with AsyncClient(nobody, retry=SLOW) as client:
            stream = client.stream("tell")
            reading = asyncio.create_task(anext(stream, None))
            await asyncio.sleep(0.1)
            with pytest.raises(RuntimeError, match="another task reads"):
                await anext(stream)
            await stream.close()
            await reading

    asyncio.run(talk())


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_closed_client_is_no_server_that_is_down(nobody: str, scheme: str) -> None:
    client = Client(f"{scheme}://{nobody}")
    client.close()
    with pytest.raises(ClientClosed):
        client.health()
