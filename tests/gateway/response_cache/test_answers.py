"""Identical requests are computed once, whichever client leaves, and only whole answers are stored."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from inflight.gateway.http import BodyMemory, DisconnectedError, Request
from inflight.gateway.key_file import ApiKey, Quotas
from inflight.gateway.key_ring import Caller
from inflight.gateway.quotas import KeyQuotas, QuotaLedger
from inflight.gateway.response_cache.answers import HEADER, CachedAnswers
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import ApiError
from inflight.openai_api.frames import DONE, KEEP_ALIVE, ChoiceFrames
from inflight.openai_api.response import ResponseHead
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until_async

TARGET: Any = SimpleNamespace(build="b1", precision="fp32")
HEAD = ResponseHead("0123456789abcdef01234567", 17, "tea", True)
NOBODY = Caller()


class Client:
    """A request, and what its client got before it left."""

    def __init__(self, **headers: str) -> None:
        self.left, self.sent = asyncio.Event(), bytearray()
        lines = [(name.encode(), line.encode()) for name, value in headers.items() for line in value.split("\n")]
        scope = {"method": "POST", "path": "/", "headers": lines}
        self.request = Request(scope, self._receive, self._send, "id", 1, BodyMemory(1))

    @property
    def text(self) -> str:
        frames = [line[6:] for line in self.sent.split(b"\n\n") if line.startswith(b"data: {")]
        return "".join(orjson.loads(each)["choices"][0]["delta"]["content"] for each in frames)

    async def _receive(self) -> Any:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent += message.get("body", b"")


class Engine:
    """A cache before an engine that answers with `0 1 `, a piece for each step that it may take."""

    def __init__(self, folder: Path, steps: int = 1000, pieces: int = 2, **outcome: Any) -> None:
        self.cache = CachedAnswers(GatewaySettings((), state_dir=str(folder)), KeyQuotas(folder / "quotas"))
        self.begun, self.ended, self.steps, self.pieces = 0, 0, asyncio.Semaphore(steps), pieces
        self.said = "0 " if steps else ""
        self.fails: ApiError | None = None
        self.outcome = {"finish_reasons": {0: "stop"}, "engine": "b1", **outcome}

    def go(self) -> None:
        for _ in range(1000):
            self.steps.release()

    async def ask(
        self, client: Client | None = None, key: bytes | None = b"key", caller: Caller = NOBODY, seconds: float = 60
    ) -> str:
        """Ask, and return what the cache did."""
        request = (client or Client()).request
        self.key = key
        await self.cache.answer(request, caller, lambda: self.key, TARGET, time.monotonic() + seconds, self._compute)
        return request.response_headers[HEADER]

    async def open(self, count: int) -> tuple[list[Client], list[asyncio.Task[str]]]:
        """Open identical requests, and wait until each has what there is."""
        clients = [Client() for _ in range(count)]
        tasks = [asyncio.create_task(self.ask(client)) for client in clients]
        await wait_until_async(lambda: self.readers == count and all(each.text == self.said for each in clients))
        return clients, tasks

    @property
    def readers(self) -> int:
        """How many clients get what is being computed."""
        return sum(each._readers for each in self.cache._computing.values())

    async def _compute(self, request: Request) -> None:
        self.begun += 1
        frames = ChoiceFrames(HEAD, 0, False, f"call_{HEAD.id[:16]}00")
        try:
            for piece in range(self.pieces):
                await self.steps.acquire()
                if self.fails is not None:
                    raise self.fails
                if not request.started:
                    await request.start_stream()
                await request.write(frames.text(f"{piece} ") + KEEP_ALIVE)
            for name, value in self.outcome.items():
                setattr(request.outcome, name, value)
            await request.end(DONE)
        finally:
            self.ended += 1


@pytest.mark.parametrize("leavers", [(), (0,), (0, 5, 63)])
def test_identical_requests_are_computed_once_whichever_client_leaves(tmp_path: Path, leavers: tuple[int, ...]) -> None:
    async def run() -> None:
        engine = Engine(tmp_path, steps=1)
        clients, tasks = await engine.open(64)
        for each in leavers:
            clients[each].left.set()
        await wait_until_async(lambda: engine.readers == 64 - len(leavers))
        engine.go()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [place for place, each in enumerate(ended) if isinstance(each, DisconnectedError)] == list(leavers)
        stayed = [client for place, client in enumerate(clients) if place not in leavers]
        assert {client.text for client in stayed} == {"0 1 "}
        later = Client()
        assert (await engine.ask(later), later.text, engine.begun) == ("hit", "0 1 ", 1)
        assert KEEP_ALIVE not in later.sent

    asyncio.run(run())


def test_what_no_client_waits_for_any_more_is_cancelled(tmp_path: Path) -> None:
    async def run() -> None:
        engine = Engine(tmp_path, steps=1)
        clients, tasks = await engine.open(3)
        for client in clients:
            client.left.set()
        assert {type(each) for each in await asyncio.gather(*tasks, return_exceptions=True)} == {DisconnectedError}
        assert (engine.begun, engine.ended, clients[0].request.outcome.left) == (1, 1, True)
        engine.go()
        assert await engine.ask() == "miss"

    asyncio.run(run())


@pytest.mark.parametrize("steps", [0, 1], ids=["at once", "midway"])
def test_a_failure_reaches_those_who_got_a_part_and_others_are_computed_for_themselves(
    tmp_path: Path, steps: int
) -> None:
    async def run() -> None:
        engine = Engine(tmp_path, steps=steps)
        clients, tasks = await engine.open(4)
        engine.fails = ApiError("gone", "server_gone")
        engine.steps.release()
        with raises(ApiError, "server_gone"):
            await tasks[0]
        engine.fails = None
        engine.go()
        others = await asyncio.gather(*tasks[1:], return_exceptions=True)
        if steps:
            assert [each.code for each in others if isinstance(each, ApiError)] == ["server_gone"] * 3
        else:
            assert [(client.text, each) for client, each in zip(clients[1:], others, strict=True)] == [
                ("0 1 ", "miss")
            ] * 3

    asyncio.run(run())


def test_a_request_waits_for_the_answer_of_another_one_until_its_own_deadline(tmp_path: Path) -> None:
    async def run() -> None:
        engine = Engine(tmp_path, steps=1)
        _, tasks = await engine.open(1)
        with raises(ApiError, "deadline_exceeded"):
            await engine.ask(seconds=0.05)
        engine.go()
        assert await asyncio.gather(*tasks) == ["miss"]

    asyncio.run(run())


@pytest.mark.parametrize(
    "outcome",
    [
        {"error": "engine_died"},
        {"failed": ["tea#1: server_gone"]},
        {"engine": "b2"},
        {"finish_reasons": {}},
        {"finish_reasons": {0: "stop", 1: "content_filter"}},
        {"pieces": 10_000},
        {"headers": {"x-inflight-degraded": "max_tokens=8"}},
        {"checks": ["hook=failed"]},
    ],
    ids=str,
)
def test_an_answer_that_is_not_what_was_asked_for_is_not_stored(tmp_path: Path, outcome: dict[str, Any]) -> None:
    async def run() -> None:
        headers = outcome.pop("headers", {})
        engine, clients = Engine(tmp_path, 30_000, **outcome), [Client(), Client()]
        for client in clients:
            client.request.response_headers |= headers
        assert [await engine.ask(client) for client in clients] == ["miss", "miss"]

    asyncio.run(run())


def test_an_answer_is_not_stored_if_what_it_depends_on_changes_meanwhile(tmp_path: Path) -> None:
    async def run() -> None:
        engine = Engine(tmp_path, steps=1)
        _, tasks = await engine.open(1)
        engine.key = b"of another day"
        engine.go()
        assert await asyncio.gather(*tasks) == ["miss"]
        assert [await engine.ask() for _ in range(2)] == ["miss", "hit"]

    asyncio.run(run())


def test_who_takes_no_less_than_asked_for_does_not_get_what_others_get(tmp_path: Path) -> None:
    async def run() -> None:
        engine = Engine(tmp_path, steps=1)
        _, tasks = await engine.open(1)
        engine.go()
        callers = [Caller(key=ApiKey.new("app", degrade=degrade)) for degrade in (True, False)]
        never = Client(**{"x-inflight-degrade": "never"})
        asked = [engine.ask(caller=callers[0]), engine.ask(caller=callers[1]), engine.ask(never)]
        assert await asyncio.gather(*tasks, *asked) == ["miss", "hit", "miss", "hit"]
        assert engine.begun == 2

    asyncio.run(run())


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("no-store", "off"),
        ("no-store\nmax-age=60", "off"),
        ("Public, NO-CACHE", "miss"),
        ("max-age=0", "miss"),
        ("max-age=soon", "miss"),
        ("max-age=60, no-transform", "hit"),
        ('max-age="' + "9" * 5000 + '"', "hit"),
        (",=,;", "hit"),
    ],
)
def test_cache_control_is_obeyed(tmp_path: Path, header: str, expected: str) -> None:
    async def run() -> None:
        engine = Engine(tmp_path)
        await engine.ask()
        assert await engine.ask(Client(**{"cache-control": header})) == expected
        assert engine.begun == 1 + (expected != "hit")
        assert (await engine.ask(), await engine.ask(key=None)) == ("hit", "off")

    asyncio.run(run())


def test_hits_count_as_requests_and_their_tokens_do_not(tmp_path: Path) -> None:
    key = ApiKey.new("app", quotas=Quotas(requests_per_minute=3, tokens_per_day=10))

    async def run() -> None:
        engine = Engine(tmp_path)
        await engine.ask()
        for _ in range(3):
            await engine.ask(caller=Caller(key=key))
        with raises(ApiError, "rate_limit_exceeded"):
            await engine.ask(caller=Caller(key=key))

    asyncio.run(run())
    QuotaLedger(tmp_path / "quotas").reserve(ApiKey.new("app", quotas=Quotas(tokens_per_day=10)), 10)
