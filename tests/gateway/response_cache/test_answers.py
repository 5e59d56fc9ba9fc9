"""Identical requests are computed once, whoever leaves, and answers that are not whole are not stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from inflight.gateway.http import BodyMemory, DisconnectedError, Request, Response
from inflight.gateway.key_file import ApiKey, Quotas
from inflight.gateway.key_ring import Caller
from inflight.gateway.quotas import KeyQuotas, QuotaLedger
from inflight.gateway.response_cache.answers import HEADER, CachedAnswers, Renaming
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import ApiError
from inflight.openai_api.frames import DONE, KEEP_ALIVE, ChoiceFrames
from inflight.openai_api.response import ResponseHead
from inflight.openai_api.responses import ResponsesWriter
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until_async

TARGET: Any = SimpleNamespace(build="b1", precision="fp32")
NOBODY = Caller()
HEAD = "0123456789abcdef01234567"


class Client:
    """A request and what its client got; `leave` closes the connection."""

    def __init__(self, **headers: str) -> None:
        self.left, self.sent = asyncio.Event(), bytearray()
        scope = {"method": "POST", "path": "/", "headers": [(k.encode(), v.encode()) for k, v in headers.items()]}
        self.request = Request(scope, self._receive, self._send, "id", 1, BodyMemory(1))

    @property
    def result(self) -> str:
        return self.request.response_headers[HEADER]

    async def _receive(self) -> Any:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent += message.get("body", b"")


class Engine:
    """Answers requests with frames, one for each time it may go on; counts them."""

    def __init__(self, pieces: int = 2, fails: Exception | None = None, **outcome: Any) -> None:
        self.begun, self.ended, self.steps = 0, 0, asyncio.Semaphore(0)
        self.pieces, self.fails = pieces, fails
        self.outcome = {"finish_reasons": {0: "stop"}, "engine": "b1", **outcome}

    def go(self, steps: int = 1000) -> None:
        for _ in range(steps):
            self.steps.release()

    async def compute(self, request: Request) -> None:
        self.begun += 1
        frames = ChoiceFrames(ResponseHead(HEAD, 1, "tea", True), 0, False, f"call_{HEAD[:16]}00")
        try:
            for piece in range(self.pieces):
                await self.steps.acquire()
                if self.fails is not None and piece == self.pieces - 1:
                    raise self.fails
                if not request.started:
                    await request.start_stream()
                await request.write(frames.text(f"{piece} ") + KEEP_ALIVE)
            for name, value in self.outcome.items():
                setattr(request.outcome, name, value)
            await request.end(DONE)
        finally:
            self.ended += 1


def cached(folder: Path) -> CachedAnswers:
    return CachedAnswers(GatewaySettings((), state_dir=str(folder)), KeyQuotas(folder / "quotas"))


async def ask(
    cache: CachedAnswers,
    compute: Callable[[Request], Awaitable[None]],
    client: Client | None = None,
    key: bytes | None = b"key",
    caller: Caller = NOBODY,
    seconds: float = 60,
) -> Client:
    client = client or Client()
    await cache.answer(client.request, caller, key, TARGET, time.monotonic() + seconds, compute)
    return client


def texts(client: Client) -> str:
    frames = [line.removeprefix(b"data: ") for line in client.sent.split(b"\n\n") if line.startswith(b"data: {")]
    return "".join(orjson.loads(each)["choices"][0]["delta"]["content"] for each in frames)


async def running(cache: CachedAnswers, engine: Engine, count: int) -> tuple[list[Client], list[asyncio.Task[Client]]]:
    """Clients of identical requests, which are open."""
    clients = [Client() for _ in range(count)]
    tasks = [asyncio.create_task(ask(cache, engine.compute, client)) for client in clients]
    await wait_until_async(lambda: engine.begun == 1)
    await looked(cache)
    return clients, tasks


async def looked(cache: CachedAnswers) -> None:
    """Wait until the requests that are open have looked into the store."""
    await asyncio.sleep(0)
    await ask(cache, Engine(0).compute, key=b"other")


@pytest.mark.parametrize("leavers", [(), (0,), (0, 5), (9, 63)])
def test_identical_requests_are_computed_once_whoever_leaves(tmp_path: Path, leavers: tuple[int, ...]) -> None:
    async def run() -> None:
        cache, engine = cached(tmp_path), Engine()
        clients, tasks = await running(cache, engine, 64)
        engine.go(1)
        await wait_until_async(lambda: all(b"0 " in client.sent for client in clients))
        for each in leavers:
            clients[each].left.set()
        await asyncio.sleep(0.01)
        engine.go()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [place for place, each in enumerate(ended) if isinstance(each, DisconnectedError)] == list(leavers)
        stayed = [client for place, client in enumerate(clients) if place not in leavers]
        assert engine.begun == 1
        assert {texts(client) for client in stayed} == {"0 1 "}
        assert len({bytes(client.sent) for client in stayed}) == len(stayed)  # each has an id of its own
        after = await ask(cache, engine.compute)
        assert (engine.begun, after.result, texts(after), KEEP_ALIVE in after.sent) == (1, "hit", "0 1 ", False)
        cache.close()

    asyncio.run(run())


def test_what_nobody_waits_for_any_more_is_cancelled(tmp_path: Path) -> None:
    async def run() -> None:
        cache, engine = cached(tmp_path), Engine()
        clients, tasks = await running(cache, engine, 3)
        for client in clients:
            client.left.set()
        assert {type(each) for each in await asyncio.gather(*tasks, return_exceptions=True)} == {DisconnectedError}
        assert (engine.begun, engine.ended) == (1, 1)
        assert clients[0].request.outcome.left
        engine.go()
        assert (await ask(cache, engine.compute)).result == "miss"

    asyncio.run(run())


def test_a_request_is_computed_for_itself_if_that_of_another_fails_and_errors_are_not_stored(tmp_path: Path) -> None:
    async def run() -> None:
        cache, failing, engine = cached(tmp_path), Engine(1, ApiError("late", "deadline_exceeded")), Engine()
        engine.go()
        first = asyncio.create_task(ask(cache, failing.compute))
        await wait_until_async(lambda: failing.begun == 1)
        others = [asyncio.create_task(ask(cache, engine.compute)) for _ in range(3)]
        await looked(cache)
        assert engine.begun == 0
        failing.go()
        with raises(ApiError, "deadline_exceeded"):
            await first
        assert [(texts(each), each.result) for each in await asyncio.gather(*others)] == [("0 1 ", "miss")] * 3

    asyncio.run(run())


def test_a_stream_that_fails_midway_fails_for_all_who_got_a_part(tmp_path: Path) -> None:
    async def run() -> None:
        cache, engine = cached(tmp_path), Engine(2, ApiError("gone", "server_gone"))
        clients, tasks = await running(cache, engine, 3)
        engine.go(1)
        await wait_until_async(lambda: all(client.sent for client in clients))
        engine.go()
        assert {each.code for each in await asyncio.gather(*tasks, return_exceptions=True)} == {"server_gone"}  # type: ignore[union-attr]

    asyncio.run(run())


def test_a_request_waits_for_another_ones_answer_until_its_own_deadline(tmp_path: Path) -> None:
    async def run() -> None:
        cache, slow, own = cached(tmp_path), Engine(), Engine()
        own.go()
        _, tasks = await running(cache, slow, 1)
        assert (await ask(cache, own.compute, Client(**{"cache-control": "no-store"}), seconds=0.05)).result == "off"
        slow.go(1)
        with raises(ApiError, "deadline_exceeded"):
            await ask(cache, own.compute, seconds=0.05)
        slow.go()
        await asyncio.gather(*tasks)

    asyncio.run(run())


@pytest.mark.parametrize(
    "outcome",
    [
        {"error": "engine_died"},
        {"rung": "max_tokens=8"},
        {"failed": ["tea#1: server_gone"]},
        {"engine": "b2"},
        {"finish_reasons": {}},
        {"finish_reasons": {0: "stop", 1: "content_filter"}},
        {"pieces": 10_000},
    ],
    ids=str,
)
def test_an_answer_that_is_not_what_was_asked_for_is_not_stored(tmp_path: Path, outcome: dict[str, Any]) -> None:
    async def run() -> None:
        cache, engine = cached(tmp_path), Engine(**outcome)
        engine.go(30_000)
        assert [(await ask(cache, engine.compute)).result for _ in range(2)] == ["miss", "miss"]
        assert engine.begun == 2

    asyncio.run(run())


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("no-store", ["off", "hit"]),
        ("Public, NO-CACHE", ["miss", "hit"]),
        ("max-age=0", ["miss", "hit"]),
        ("max-age=60, no-transform", ["hit", "hit"]),
        ('max-age="99999999999999999999"', ["hit", "hit"]),
        ("max-age=soon", ["miss", "hit"]),
        ("max-age=" + "9" * 5000, ["hit", "hit"]),
        (",=,;", ["hit", "hit"]),
    ],
)
def test_cache_control_is_obeyed(tmp_path: Path, header: str, expected: list[str]) -> None:
    async def run() -> None:
        cache, engine = cached(tmp_path), Engine()
        engine.go()
        await ask(cache, engine.compute)
        controlled = await ask(cache, engine.compute, Client(**{"cache-control": header}))
        assert [controlled.result, (await ask(cache, engine.compute)).result] == expected
        assert engine.begun == 1 + (expected[0] != "hit")
        assert (await ask(cache, engine.compute, key=None)).result == "off"

    asyncio.run(run())


def test_hits_count_as_requests_and_their_tokens_do_not(tmp_path: Path) -> None:
    caller = Caller(key=ApiKey.new("app", quotas=Quotas(requests_per_minute=3, tokens_per_day=10)))

    async def run() -> None:
        cache, engine = cached(tmp_path), Engine()
        engine.go()
        await ask(cache, engine.compute)
        for _ in range(3):
            await ask(cache, engine.compute, caller=caller)
        with raises(ApiError, "rate_limit_exceeded"):
            await ask(cache, engine.compute, caller=caller)

    asyncio.run(run())
    other = ApiKey.new("app", quotas=Quotas(tokens_per_day=10))
    QuotaLedger(tmp_path / "quotas").reserve(other, 10)


def bodies() -> list[tuple[bytes, dict[str, Any]]]:
    """What is sent of each kind, and its last JSON. Its text and metadata look like its head."""
    head, text = ResponseHead(HEAD, 17, "tea", True, "fp_1"), '"created":17 "created_at":17'
    whole = orjson.dumps({**head.fields(), "choices": [{"message": {"content": text}}], "note": {"created": 17}})
    frames = ChoiceFrames(head, 0, False, f"call_{HEAD[:16]}00")
    writer = ResponsesWriter(head, {"metadata": {"created_at": "17"}}, f"call_{HEAD[:16]}00")
    events = writer.first() + writer.text(text) + writer.finish("stop") + writer.last(None)
    return [
        (whole, orjson.loads(whole)),
        (frames.text(text) * 2, orjson.loads(frames.text(text)[6:])),
        (events, orjson.loads(events.rpartition(b"data: ")[2])["response"]),
    ]


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["whole", "stream", "responses"])
def test_a_replayed_answer_has_an_id_and_a_time_of_its_own_and_nothing_else_changes(kind: int) -> None:
    wire, before = bodies()[kind]
    renamed = Renaming()(wire)
    assert HEAD[:16].encode() not in renamed
    text = renamed.rpartition(b"data: ")[2]
    after = orjson.loads(text)
    after = after.get("response", after)
    name = "created_at" if kind == 2 else "created"
    assert after[name] >= time.time() - 60
    assert len(after["id"]) == len(before["id"])
    new = after["id"].rpartition("-" if kind < 2 else "_")[2]
    assert orjson.dumps({**after, name: 17}).replace(new[:16].encode(), HEAD[:16].encode()) == orjson.dumps(before)


def test_a_whole_response_is_replayed_as_one(tmp_path: Path) -> None:
    async def compute(request: Request) -> None:
        request.outcome.finish_reasons, request.outcome.engine = {0: "length"}, "b1"
        await request.respond(Response(bodies()[0][0]))

    async def run() -> None:
        cache = cached(tmp_path)
        clients = [await ask(cache, compute) for _ in range(2)]
        assert [each.result for each in clients] == ["miss", "hit"]
        assert [orjson.loads(each.sent)["choices"] for each in clients] == [bodies()[0][1]["choices"]] * 2
        assert clients[1].request.outcome.finish_reasons == {0: "length"}
        assert clients[1].request.outcome.engine == "b1"

    asyncio.run(run())
