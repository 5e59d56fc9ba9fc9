"""The pool against Triton itself: places found, a short queue, requests cancelled, and an engine that dies of a row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from inflight_client import AsyncClient, InflightError
from tokenizers import Tokenizer

from inflight.batch.dispatch.backend import ServerLoad
from inflight.batch.dispatch.ephemeral_server import ephemeral_server
from inflight.batch.dispatch.triton_backend import TritonBackend
from inflight.batch.job.rows import GenerateRequest, Row
from inflight.batch.job.spec import RunOptions
from tests.batch.scripted_backend import DispatchRun, ListFeed, text_of
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import ENDLESS, fake_engine
from tests.fixtures.waiting import wait_until_async

PLACES, QUEUE = 8, 6
POISON = "zebra"
"""No other prompt begins with its first token."""


@pytest.fixture(scope="module")
def served(tiny_engine: TinyEngine) -> Iterator[RunOptions]:
    """A server of the job's own, whose engine makes a token a hundredth of a second, and dies of POISON."""
    engine = tiny_engine("llama")
    tokenizer = Tokenizer.from_file(str(engine / "tokenizer.json"))
    first, other = (tokenizer.encode(text, add_special_tokens=False).ids[0] for text in (POISON, "row"))
    assert first != other
    longest = ENDLESS + 2048
    options = {
        "kv_cache_tokens": PLACES * longest,
        "max_num_sequences": PLACES,
        "max_queue_size": QUEUE,
        "parameters": {
            **fake_engine(step_seconds=0.01, max_seq_len=longest, die_token=first),
            "preprocessing": {"add_special_tokens": "false"},
        },
    }
    running = RunOptions(ephemeral=str(engine), ephemeral_options=options)
    with ephemeral_server(running, print) as address:
        yield running.model_copy(update={"servers": (address,)})


def prepared(served: RunOptions, prompts: list[str], tokens: int | list[int], **running: object) -> DispatchRun:
    settings = served.model_copy(update=running)
    backend = TritonBackend(settings.servers[0], settings)
    feed = ListFeed(prompts)
    lengths = tokens if isinstance(tokens, list) else [tokens] * len(prompts)
    feed.rows[:] = [
        Row(row.number, row.line, row.id, GenerateRequest(text_of(row.request), length))
        for row, length in zip(feed.rows, lengths, strict=True)
    ]
    return DispatchRun([backend], feed, **settings.model_dump())


async def look(served: RunOptions) -> ServerLoad:
    backend = TritonBackend(served.servers[0], served)
    try:
        return await backend.load()
    finally:
        await backend.close()


async def load_is(served: RunOptions, condition: Callable[[ServerLoad], bool]) -> None:
    async def is_so() -> bool:
        return condition(await look(served))

    await wait_until_async(is_so, seconds=60)


async def test_it_fills_the_places_and_a_short_queue_and_no_more(served: RunOptions) -> None:
    # Of several lengths: rows of one length end all at once, and leave the places empty until others have come.
    asked = prepared(served, [f"row {number}" for number in range(80)], [40 + 7 * n % 41 for n in range(80)])
    running = asyncio.create_task(asked.run())
    loads = []
    while not running.done():
        await asyncio.sleep(0.1)
        if 16 < len(asked.answers) < 64:
            loads.append(await look(served))
    await running
    assert len(asked.answers) == 80
    assert loads
    # Between the end of a row and the next step one place is empty.
    full = [load for load in loads if load.running is not None and load.running >= PLACES - 1]
    assert all(load.max_running == PLACES for load in loads), loads
    assert len(full) >= len(loads) * 0.7, loads
    assert all(load.waiting is not None and load.waiting <= QUEUE - 1 for load in loads), loads
    assert sum(1 for load in loads if load.waiting) >= len(loads) * 0.5, loads


async def test_what_is_drained_is_cancelled_on_the_server(served: RunOptions) -> None:
    asked = prepared(served, [f"row {number}" for number in range(20)], ENDLESS)
    running = asyncio.create_task(asked.run())
    await load_is(served, lambda load: load.running == PLACES)
    await asked.dispatcher.drain(0.1)
    await running
    assert not asked.attempts
    await load_is(served, lambda load: not load.running and not load.waiting)


async def test_rows_that_name_another_model_are_told_of_once(served: RunOptions) -> None:
    messages: list[str] = []
    backend = TritonBackend(served.servers[0], served, messages.append)
    try:
        for model in (None, "ensemble", "tiny-llama", "gpt-4o-mini", "gpt-4o"):
            await backend.send([GenerateRequest("row", 1, model=model)], "")
            assert len(messages) == (model not in (None, "ensemble", "tiny-llama"))
    finally:
        await backend.close()
    assert "'gpt-4o-mini'" in messages[0]
    assert "'tiny-llama'" in messages[0]


async def overtakers(served: RunOptions, priority: int) -> list[int]:
    """How many rows of a job ended while another client waited for one token, each time with two rows waiting."""
    lengths = [20 + 37 * number % 41 for number in range(4000)]
    asked = prepared(served, [f"row {number}" for number in range(4000)], lengths, priority=priority)
    running = asyncio.create_task(asked.run())
    counts = []
    async with AsyncClient(served.servers[0].partition(",")[0]) as client:
        for _ in range(15):
            await load_is(served, lambda load: (load.waiting or 0) >= 2)
            before = len(asked.answers)
            await client.generate("row", max_tokens=1)
            counts.append(len(asked.answers) - before)
    await asked.dispatcher.drain(0.1)
    await running
    return counts


async def test_others_go_before_a_job(served: RunOptions) -> None:
    ahead, behind = await overtakers(served, -1), await overtakers(served, 0)
    assert sum(ahead) < sum(behind), (ahead, behind)


async def test_a_row_that_kills_engines_is_set_aside_and_all_others_are_answered(served: RunOptions) -> None:
    prompts = [f"row {number}" for number in range(200)]
    prompts[100] = f"{POISON} row"
    asked = prepared(served, prompts, 2, concurrency=2, max_engine_crashes=1)
    await asked.run(280.0)
    assert asked.errors == {100: "row_crashed_engine"}
    assert len(asked.answers) == 199
    assert asked.recorded.noted == [(100, 1)]


async def test_a_server_whose_load_nobody_sees_is_told_of_once(served: RunOptions) -> None:
    messages: list[str] = []
    backend = TritonBackend(
        f"{served.servers[0].partition(',')[0]},metrics=http://127.0.0.1:1/metrics", served, messages.append
    )
    for _ in range(2):
        with pytest.raises(InflightError):
            await backend.load()
    await backend.close()
    assert len(messages) == 1
    assert "http://127.0.0.1:1/metrics" in messages[0]
