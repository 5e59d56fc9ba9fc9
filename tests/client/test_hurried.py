"""Under load each call gets the answer to its own prompt: engine steps of 1 to 5 ms, all four ways at the same time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import pytest
from inflight_client import AsyncClient, Client, DeadlineExceeded, Delta, Generation, Sampling

from inflight.deploy.server.server import Server
from tests.client.support.client_variants import CLIENT_VARIANTS, ClientVariant
from tests.client.support.leak_checks import SOON, nothing_left
from tests.serving.model_replies import TEXT_MODELS

WORKERS = 4
"""Threads or tasks that share the client of each way."""
PROMPTS = ["tea and cake", "a green river", "seven paper wheels", "salt, bread; glass! 42"]
SHORT, LONG = (4, 5, 9), 60
KINDS = ("whole", "whole", "stream", "stream", "many", "left", "cancelled", "late")


class Heard(NamedTuple):
    """What came of an answer. Without a reason it was left before its end."""

    text: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: str | None

    def begins(self, whole: Heard) -> bool:
        """Whether this is as much of an answer as came before it was ended."""
        pairs = zip(self[:3], whole[:3], strict=True)
        return self.finish_reason in (None, "cancelled") and all(part == all_[: len(part)] for part, all_ in pairs)


class Call(NamedTuple):
    """A call of a client: of some kind, with the moment at which one is left, is cancelled or is too late."""

    kind: str
    prompts: tuple[str, ...]
    max_tokens: int
    seed: int
    stop: tuple[str, ...]
    deltas: int
    seconds: float

    @property
    def options(self) -> dict[str, Any]:
        sampling = Sampling(seed=self.seed, stop=self.stop, end_id=-1)
        told = {"return_log_probs": True, "return_token_ids": True}
        return {"max_tokens": self.max_tokens, "sampling": sampling, "timeout": SOON, **told}


def drawn(source: random.Random) -> Iterator[Call]:
    while True:
        kind = source.choice(KINDS)
        prompts = tuple(source.choices(PROMPTS, k=5 if kind == "many" else 1))
        # The beginning of a stop word is held back, and comes where the answer is cancelled.
        long = kind in ("left", "cancelled")
        length, stop = (LONG, ()) if long else (source.choice(SHORT), source.choice([(), ("wheels", "river")]))
        yield Call(kind, prompts, length, source.choice([0, 1]), stop, source.randint(1, 8), source.uniform(0.005, 0.1))


def in_a_thread(client: Client, call: Call) -> list[Heard]:
    if call.kind == "many":
        return [heard(answer) for answer in client.generate_many(call.prompts, concurrency=3, **call.options)]
    (prompt,) = call.prompts
    if call.kind == "whole":
        return [heard(client.generate(prompt, **call.options))]
    if call.kind == "late":
        with suppress(DeadlineExceeded):
            return [heard(client.generate(prompt, **call.options | {"timeout": call.seconds}))]
        return []
    deltas = []
    with client.stream(prompt, **call.options) as stream:
        for delta in stream:
            deltas.append(delta)
            if len(deltas) == call.deltas and call.kind == "left":
                break
            if len(deltas) == call.deltas and call.kind == "cancelled":
                client.cancel(stream.request_id)
    return [joined(deltas)]


async def in_a_task(client: AsyncClient, call: Call) -> list[Heard]:
    if call.kind == "many":
        answers = client.generate_many(call.prompts, concurrency=3, **call.options)
        return [heard(answer) async for answer in answers]
    (prompt,) = call.prompts
    if call.kind == "whole":
        return [heard(await client.generate(prompt, **call.options))]
    if call.kind == "late":
        with suppress(TimeoutError):
            async with asyncio.timeout(call.seconds):
                return [heard(await client.generate(prompt, **call.options))]
        return []
    deltas = []
    async with client.stream(prompt, **call.options) as stream:
        async for delta in stream:
            deltas.append(delta)
            if len(deltas) == call.deltas and call.kind == "left":
                break
            if len(deltas) == call.deltas and call.kind == "cancelled":
                await client.cancel(stream.request_id)
    return [joined(deltas)]


def heard(answer: Generation) -> Heard:
    return Heard(answer.text, answer.token_ids or (), answer.log_probs or (), answer.finish_reason)


def joined(deltas: list[Delta]) -> Heard:
    assert not [delta for delta in deltas[:-1] if delta.finish_reason]
    return Heard(
        "".join(delta.text for delta in deltas),
        tuple(number for delta in deltas for number in delta.token_ids or ()),
        tuple(number for delta in deltas for number in delta.log_probs or ()),
        deltas[-1].finish_reason,
    )


def all_of(
    way: ClientVariant, server: Server, model: str, shares: Iterable[list[Call]]
) -> list[tuple[Call, list[Heard]]]:
    """What comes of the calls of one way: a share of them for each worker."""
    url = way.url(way.port(server))
    if not way.aio:
        with Client(url, model) as client, ThreadPoolExecutor(WORKERS) as threads:
            pairs = threads.map(lambda share: [(call, in_a_thread(client, call)) for call in share], shares)
            return [pair for found in pairs for pair in found]

    async def work() -> list[tuple[Call, list[Heard]]]:
        async def each(share: list[Call]) -> list[tuple[Call, list[Heard]]]:
            return [(call, await in_a_task(async_client, call)) for call in share]

        async with AsyncClient(url, model) as async_client:
            return [pair for found in await asyncio.gather(*map(each, shares)) for pair in found]

    return asyncio.run(work())


@pytest.mark.parametrize("count", [6, pytest.param(24, marks=pytest.mark.slow)])
@pytest.mark.parametrize("model", TEXT_MODELS)
def test_each_call_gets_its_own_answer(hurried_server: Server, model: str, count: int) -> None:
    """`count` calls of each worker."""
    calls = drawn(random.Random(model))
    shares = {way: [[next(calls) for _ in range(count)] for _ in range(WORKERS)] for way in CLIENT_VARIANTS}
    with nothing_left(hurried_server):
        with ThreadPoolExecutor(len(CLIENT_VARIANTS)) as threads:
            found = threads.map(lambda way: all_of(way, hurried_server, model, shares[way]), CLIENT_VARIANTS)
            said = [(way, *pair) for way, pairs in zip(CLIENT_VARIANTS, found, strict=True) for pair in pairs]
        with Client(hurried_server.grpc_address, model) as alone:

            @cache
            def wanted(call: Call, prompt: str) -> Heard:
                return heard(alone.generate(prompt, **call.options))

            wrong = [
                (str(way), call, answer, whole)
                for way, call, answers in said
                for prompt, answer in zip(call.prompts, answers, strict=call.kind != "late")
                if answer != (whole := wanted(call._replace(kind="", deltas=0, seconds=0, prompts=()), prompt))
                and not (call.kind in ("left", "cancelled") and answer.begins(whole))
            ]
    assert not wrong, f"{len(wrong)} answers are wrong: {wrong[0]}"
