"""What holds for asyncio alone: one loop, cancelled tasks, and calls that others end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from inflight_client import InflightError
from inflight_client._grpc.async_transport import AsyncGrpcTransport
from inflight_client.address import Address
from inflight_client.deadline import NEVER, Deadline

from tests.client._grpc.scripted_calls import SOON, script
from tests.client._grpc.transports import request, serving_at
from tests.client.support import leak_checks
from tests.client.support.leak_checks import in_loop, nothing_left
from tests.fixtures.errors import raises


@pytest.fixture(scope="module")
def address() -> Iterator[Address]:
    with serving_at(script) as where:
        yield Address.parse(where)


def test_making_one_needs_no_loop_and_opens_nothing(address: Address) -> None:
    with nothing_left():
        before = leak_checks.held_resources()
        transport = AsyncGrpcTransport(address, {}, None)
        assert not any(leak_checks.more_than(before))  # threads of earlier tests may end meanwhile
        asyncio.run(transport.close())


def test_another_loop_is_told_so(address: Address) -> None:
    transport = AsyncGrpcTransport(address, {}, None)
    with asyncio.Runner() as runner:
        assert runner.run(transport.model_ready("ensemble", Deadline(SOON)))
        with asyncio.Runner() as other, raises(InflightError, "client_closed"):
            other.run(transport.model_ready("ensemble", Deadline(SOON)))
        runner.run(transport.close())


def test_a_cancelled_task_is_a_cancelled_task_and_its_call_ends(address: Address) -> None:
    async def main() -> None:
        transport = AsyncGrpcTransport(address, {}, None)
        responses = transport.infer(request("stuck"), NEVER, NEVER)
        await anext(responses)
        reading = asyncio.ensure_future(_next(responses))
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await responses.close()
        await transport.close()

    with nothing_left():
        leak_checks.run(main)


@pytest.mark.parametrize(("ends", "code"), [("cancel", "cancelled"), ("close", "cancelled"), ("all", "client_closed")])
@in_loop
async def test_who_reads_a_call_that_another_task_ends_is_told_so(address: Address, ends: str, code: str) -> None:
    transport = AsyncGrpcTransport(address, {}, None)
    responses = transport.infer(request("stuck"), NEVER, NEVER)
    await anext(responses)
    reading = asyncio.ensure_future(_next(responses))
    await asyncio.sleep(0.05)
    if ends == "cancel":
        responses.cancel()
    else:
        await (transport.close() if ends == "all" else responses.close())
    with raises(InflightError, code):
        await reading
    await responses.close()
    await transport.close()


def test_closing_waits_until_nothing_of_the_calls_is_left(address: Address) -> None:
    async def main() -> None:
        transport = AsyncGrpcTransport(address, {}, None)
        calls = [transport.infer(request("stuck"), NEVER, NEVER) for _ in range(8)]
        for responses in calls:
            await anext(responses)
        await transport.close()
        del calls, responses

    with nothing_left():
        leak_checks.run(main)


async def _next(responses: Any) -> Any:
    return await anext(responses)
