"""Many prompts at once for asyncio: when they are read, when answers are handed out, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from inflight_client import AsyncClient, Generation

from tests.client.support.gated_server import PROMPTS, SOON, GateLoopError, SourceError, failing, texts, waiting_later
from tests.client.support.leak_checks import run
from tests.standins.faulty_network.proxy import Faults, FaultyNetwork
from tests.standins.faulty_network.toxics import StallAt


@pytest.mark.parametrize("as_completed", [False, True])
def test_asyncio_hands_out_what_is_answered_while_the_source_waits(held_address: str, as_completed: bool) -> None:
    async def work() -> list[Any]:
        async with AsyncClient(held_address) as client:
            answers = client.generate_many(waiting_later(PROMPTS), concurrency=4, as_completed=as_completed)
            async with asyncio.timeout(SOON), aclosing(answers):
                return [await anext(answers) for _ in PROMPTS]

    assert sorted(texts(run(work))) == sorted(PROMPTS)


def test_prompts_of_asyncio_may_depend_on_answers(held_address: str) -> None:
    async def work() -> list[str]:
        prompts: asyncio.Queue[str] = asyncio.Queue()
        prompts.put_nowait("0")

        async def source() -> AsyncIterator[str]:
            for _ in range(5):
                yield await prompts.get()

        said = []
        async with AsyncClient(held_address) as client, asyncio.timeout(SOON):
            async for _, answer in client.generate_many(source(), as_completed=True):
                said.append(answer.text)
                prompts.put_nowait(str(int(answer.text) + 1))
        return said

    assert run(work) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_source_that_raises_loses_no_answer_of_asyncio(held_address: str, asynchronous: bool) -> None:
    async def later() -> AsyncIterator[str]:
        for prompt in PROMPTS[:5]:
            yield prompt
        raise SourceError

    came: list[Generation] = []

    async def work() -> None:
        async with AsyncClient(held_address) as client:
            source = later() if asynchronous else failing(PROMPTS[:5])
            async for answer in client.generate_many(source, concurrency=2):
                came.append(answer)

    with pytest.raises(SourceError):
        run(work)
    assert texts(came) == PROMPTS[:5]


def test_asyncio_leaves_calls_that_reached_nobody_yet(held_address: str) -> None:
    async def work() -> None:
        with FaultyNetwork(held_address, Faults((StallAt(),), (StallAt(),))) as network:
            async with AsyncClient(f"http://{network.address}") as client, asyncio.timeout(0.3):
                async for _ in client.generate_many(waiting_later(["a"] * 3), concurrency=2):
                    raise GateLoopError

    with pytest.raises(TimeoutError):
        run(work)
