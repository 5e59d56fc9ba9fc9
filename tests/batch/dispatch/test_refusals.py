"""Refusals in words without a code: the row's fault, or a server's that refuses every request."""

from __future__ import annotations

import asyncio

from inflight_client import InflightError

from inflight.batch.errors import BatchError
from tests.batch.scripted_backend import Behaviour, DispatchRun, ListFeed, ScriptedBackend
from tests.fixtures.errors import raises

PROMPTS = [f"prompt {number}" for number in range(50)]


def refusing(after: int, for_good: bool) -> Behaviour:
    """From some request on it refuses all, in words without a code, though it calls itself ready."""

    async def behave(server: ScriptedBackend, prompt: str) -> str | InflightError:
        await asyncio.sleep(0.001)
        if len(server.asked) > after and (for_good or len(server.asked) < after + 20):
            return InflightError("CUDA error: an illegal memory access was encountered", "invalid_request")
        return prompt

    return behave


async def test_a_server_that_refuses_everything_costs_no_row() -> None:
    asked = DispatchRun(
        [server := ScriptedBackend(refusing(10, for_good=True))],
        ListFeed(PROMPTS),
        concurrency=4,
        server_wait_timeout=1.5,
    )
    with raises(BatchError, "server_unreachable", naming="CUDA"):
        await asked.run()
    assert not asked.errors
    assert 0 < len(asked.answers) <= 10
    assert len(server.asked) < 30


async def test_a_server_that_refuses_everything_for_a_while_goes_on() -> None:
    asked = await DispatchRun([ScriptedBackend(refusing(10, for_good=False))], ListFeed(PROMPTS), concurrency=4).run()
    assert asked.answers == dict(enumerate(PROMPTS))
    assert "scripted answers." in asked.messages


async def test_what_a_server_refuses_that_answers_others_is_the_row_s_own_fault() -> None:
    async def behave(server: ScriptedBackend, prompt: str) -> str | InflightError:
        await asyncio.sleep(0.001)
        return InflightError("words that nobody knows", "invalid_request") if "1" in prompt else prompt

    asked = await DispatchRun([ScriptedBackend(behave)], ListFeed(PROMPTS)).run()
    assert asked.errors == {number: "invalid_request" for number in range(50) if "1" in str(number)}
    assert set(asked.attempts.values()) == {1}
    asked = await DispatchRun([ScriptedBackend(behave)], ListFeed(["prompt 1"] * 100)).run()
    assert len(asked.errors) == 100, "however many"
