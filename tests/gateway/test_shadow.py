"""How much is kept for copies of requests."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import Counter, Gauge

from inflight.gateway.http import BodyMemory, Request
from inflight.gateway.key_ring import Caller
from inflight.gateway.shadow import Shadows


async def discard(message: Any) -> None: ...


def answered() -> Request:
    request = Request({"method": "POST", "path": "/", "headers": []}, None, discard, "id", 1, BodyMemory(1))  # type: ignore[arg-type]
    request.kept = bytearray(b"{}")
    request.outcome.model = "tea"
    return request


def test_copies_beyond_the_bound_are_dropped_before_they_take_memory(tmp_path: Path) -> None:
    copies = Counter("copies", "", ("route", "result"), registry=None)

    async def run() -> int:
        shadows = Shadows(copies, Gauge("waiting", "", registry=None))
        before = len(asyncio.all_tasks())
        for _ in range(50):
            attempt = SimpleNamespace(run=lambda *arguments: asyncio.Event().wait())
            begin: Any = lambda copy, attempt=attempt: attempt  # noqa: E731
            shadows.copy(answered(), Caller(), {}, tmp_path / "file", time.monotonic() + 60, begin)
        running = len(asyncio.all_tasks()) - before
        await shadows.close()
        return running

    running = asyncio.run(run())
    assert 0 < running < 50
    assert copies.labels("tea", "dropped")._value.get() == 50 - running


def test_an_answer_that_is_too_long_to_be_kept_is_forgotten_at_once() -> None:
    async def run() -> Request:
        request = answered()
        for _ in range(20):
            await request.write(b"x" * 2**17)
        return request

    assert asyncio.run(run()).kept is None
