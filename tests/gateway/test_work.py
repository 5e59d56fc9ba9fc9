"""Attempts at targets: which of them are held, when the next one is looked for, and a response that begins once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from inflight.gateway.admission_queue import Admission
from inflight.gateway.backends import BackendServer
from inflight.gateway.http import BodyMemory, Request, Response
from inflight.gateway.key_ring import Caller
from inflight.gateway.proxy import Passed, Proxy
from inflight.gateway.quotas import KeyQuotas
from inflight.gateway.work import Attempt, Held, run_work
from inflight.openai_api.errors import ApiError
from tests.fixtures.errors import raises
from tests.standins.openai_servers.server import openai_server

GAUGE = Gauge("waiting", "Waiting.", registry=CollectorRegistry())


def request_with(sent: list[Any], slow_start: float = 0.0) -> Request:
    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.start":
            await asyncio.sleep(slow_start)

    return Request({"method": "POST", "path": "/", "headers": []}, receive, send, "id", 1, BodyMemory(1))


def not_ready() -> ApiError:
    return ApiError("not ready; send the request again", "model_not_ready", status=503)


def attempt(label: str, ready: bool = True, error: ApiError | None = None) -> Attempt:
    """At a target of its own, which answers with its label, or fails."""

    async def respond(request: Request) -> None:
        if error is not None:
            raise error
        if request.started:
            await request.end(label.encode())
        else:
            await request.respond(Response(label.encode()))

    target: Any = SimpleNamespace(in_flight=0, ready=ready, build=label, precision="fp32")
    return Attempt(target, label, Admission(lambda: 1, 1), GAUGE, 1, 1, 1, respond)


def held(loaded: Attempt | ApiError, starts: bool = False, request: Request | None = None) -> Held:
    async def load() -> Attempt:
        if starts and request is not None:
            await request.start_stream()
        if isinstance(loaded, ApiError):
            raise loaded
        return loaded

    return Held(1, 1, load)


def answer_of(attempts: Iterator[Attempt | Held], request: Request, sent: list[Any], folder: Path) -> bytes:
    async def run() -> bool:
        return await run_work(attempts, request, Caller(), time.monotonic() + 20, KeyQuotas(folder / "quotas"), GAUGE)

    assert asyncio.run(run())
    assert [each["type"] for each in sent].count("http.response.start") == 1
    return b"".join(each.get("body", b"") for each in sent)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("kind", ["not loaded", "loaded", "lost while it waited", "failed"])
def test_a_target_that_fails_before_it_answers_is_followed_by_another(tmp_path: Path, kind: str, streams: bool) -> None:
    sent: list[Any] = []
    request = request_with(sent)
    firsts: dict[str, Attempt | Held] = {
        "not loaded": held(not_ready(), streams, request),
        "loaded": held(attempt("first"), streams, request),
        "lost while it waited": attempt("first", ready=False),
        "failed": attempt("first", error=not_ready()),
    }
    answer = answer_of(iter([firsts[kind], held(attempt("second"))]), request, sent, tmp_path)
    outcome, expected = request.outcome, "first" if kind == "loaded" else "second"
    assert (answer, outcome.target, outcome.engine) == (expected.encode(), expected, expected)
    assert outcome.failed == (["first: model_not_ready"] if kind in ("lost while it waited", "failed") else [])


def test_the_next_target_is_looked_for_once_the_first_has_failed(tmp_path: Path) -> None:
    sent: list[Any] = []
    known = ["old"]

    def attempts() -> Iterator[Attempt]:
        async def fail(request: Request) -> None:
            known[:] = ["new"]
            raise not_ready()

        yield Attempt(**{**vars(attempt("first")), "respond": fail})
        yield attempt(known[0])

    assert answer_of(attempts(), request_with(sent), sent, tmp_path) == b"new"


def test_a_request_whose_targets_all_fail_gets_the_first_error(tmp_path: Path) -> None:
    sent: list[Any] = []
    with raises(ApiError, "model_not_ready"):
        answer_of(iter([held(not_ready()), held(not_ready())]), request_with(sent), sent, tmp_path)
    assert not sent


@pytest.mark.parametrize("started", [False, True])
def test_a_stream_that_is_passed_on_begins_once_and_keeps_an_event_that_comes_meanwhile(started: bool) -> None:
    sent: list[Any] = []

    async def run(server: BackendServer) -> None:
        await server.client.facts()
        body = {"messages": [{"role": "user", "content": "tea"}]}
        until = time.monotonic() + 20
        passed = Passed(
            *("/v1/chat/completions", body, "tea", "tea", "id", until, 1),
            stream=True,
            keep_alive_seconds=0.02,
        )
        request = request_with(sent, slow_start=0.5)
        if started:
            await request.start_stream()
        await Proxy(passed, server).respond(request)
        await server.client.close()

    with openai_server("vllm", ("tea",), delay=0.1) as running:
        asyncio.run(run(BackendServer(running.address, 1)))
    assert [each["type"] for each in sent].count("http.response.start") == 1
    assert b"Answer" in b"".join(each.get("body", b"") for each in sent)
