"""AsyncOpenAIServer, and the client, against stand-ins of each kind of server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any

import pytest
from inflight_client import AsyncClient, AsyncOpenAIServer, Client, InflightError, Sampling
from inflight_client._openai.server_facts import server_facts
from inflight_client.dialects import CHAT, COMPLETIONS, DIALECTS, EMBEDDINGS, RERANK

from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until_async
from tests.standins.openai_servers import Fault, openai_server

MESSAGES = [{"role": "user", "content": "Is there tea?"}]
CHAT_BODY: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 8}


def ask(address: str, use: Callable[[AsyncOpenAIServer], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with AsyncOpenAIServer(address, **options) as server:
            await server.facts()
            return await use(server)

    return asyncio.run(run())


async def post(server: AsyncOpenAIServer, route: str = CHAT, body: dict[str, Any] | None = None) -> Any:
    return await server.post(route, server.adapted(route, body or CHAT_BODY))


async def events(server: AsyncOpenAIServer) -> list[bytes]:
    async with server.stream(CHAT, server.adapted(CHAT, CHAT_BODY)) as stream:
        return [event async for event in stream]


@pytest.mark.parametrize("kind", DIALECTS)
def test_each_kind_is_detected_and_answers(kind: str) -> None:
    async def use(server: AsyncOpenAIServer) -> None:
        facts = await server.facts()
        assert (facts.dialect, facts.model, facts.models) == (kind, "tea", ("tea",))
        assert bool(facts.version) == (kind not in ("openai", "other"))
        assert await server.ready()
        answer = await post(server)
        assert answer["choices"][0]["message"]["content"] == "Answer to Is there tea?"
        streamed = [json.loads(event) for event in await events(server)]
        assert "".join(frame["choices"][0]["delta"].get("content", "") for frame in streamed) == (
            "Answer to Is there tea?"
        )

    with openai_server(kind) as server:
        ask(server.address, use)
        assert all(request.body["model"] == "tea" for request in server.requests)


@pytest.mark.parametrize("kind", ["tgi", "llama.cpp", "ollama", "other"])
def test_a_server_without_models_is_detected_by_its_pages(kind: str) -> None:
    with openai_server(kind, models=()) as server:
        facts = ask(server.address, lambda each: each.facts())
        assert (facts.dialect, facts.model, facts.models) == (kind, "", ())
        named = ask(f"{server.address}?dialect=vllm&model=tea", lambda each: each.facts())
        assert (named.dialect, named.model) == ("vllm", "tea")


def test_a_fingerprint_is_that_of_the_model_alone() -> None:
    def fingerprint(version: str = "1", **digests: int) -> str:
        entries = [{"id": name.replace("_", ":"), "digest": digest} for name, digest in digests.items()]
        return server_facts("ollama", "tea", entries, version, "here").fingerprint

    first = fingerprint(tea_latest=1, coffee=1)
    assert first
    assert first == fingerprint("2", tea_latest=1, coffee=2) == fingerprint(milk=1, tea_latest=1)
    assert first != fingerprint(tea_latest=2, coffee=1)


@pytest.mark.parametrize("kind", DIALECTS)
def test_the_client_generates_from_each_kind(kind: str) -> None:
    with openai_server(kind) as server, Client(server.address) as client:
        answer = client.generate("Is there tea?", max_tokens=3, sampling=Sampling(temperature=0.5, seed=3))
        assert (answer.text, answer.finish_reason, answer.output_tokens) == ("Answer to Is", "length", 3)
        assert client.generate(MESSAGES, max_tokens=30).finish_reason == "stop"
        assert client.deployment().model == "tea"
        assert client.ready()
        assert [model.ready for model in client.models()] == [True]


@pytest.mark.parametrize("kind", [kind for kind in DIALECTS if EMBEDDINGS in DIALECTS[kind].paths])
def test_the_client_encodes_with_each_kind(kind: str) -> None:
    with openai_server(kind) as server, Client(server.address) as client:
        assert client.embed(["a", "b"]).vectors.shape == (2, 2)
        if RERANK in DIALECTS[kind].paths and kind != "other":
            assert {each.index for each in client.rerank("tea", ["a", "b"]).results} == {0, 1}


@pytest.mark.parametrize(
    ("status", "headers", "code", "seconds"),
    [
        (429, {"retry-after": "3"}, "overloaded", 3),
        (429, {"retry-after-ms": "1500", "retry-after": "9"}, "overloaded", 1.5),
        (503, {"retry-after": formatdate(time.time() + 2e5, usegmt=True)}, "overloaded", 3600),
        (503, {"retry-after": formatdate(0, usegmt=True)}, "overloaded", 0.0),
        (529, {}, "overloaded", None),
        (401, {}, "permission_denied", None),
        (403, {}, "permission_denied", None),
        (400, {"retry-after": "soon"}, "invalid_request", None),
    ],
)
@pytest.mark.parametrize("kind", ["openai", "tgi", "trtllm", "ovms", "other"])
def test_statuses_have_codes_and_the_wait_that_headers_ask_for(
    kind: str, status: int, headers: dict[str, str], code: str, seconds: Any
) -> None:
    with openai_server(kind, faults=[Fault("status", status, headers)]) as server:
        with raises(InflightError, code) as raised:
            ask(server.address, post)
        assert raised.value.retry_after == seconds


@pytest.mark.parametrize(
    ("fault", "use", "codes"),
    [
        (Fault("cut"), events, ("server_gone", "connection_closed", "answer_damaged")),
        (Fault("cut"), post, ("server_gone", "connection_closed")),
        (Fault("end"), events, ("answer_damaged",)),
        (Fault("garbage"), post, ("answer_damaged",)),
        (Fault("garbage"), events, ("unsupported_deployment",)),
        (Fault("silent"), post, ("deadline_exceeded",)),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_damaged_answer_is_an_error(fault: Fault, use: Any, codes: tuple[str, ...]) -> None:
    with openai_server(faults=[fault]) as server:
        with pytest.raises(InflightError) as raised:
            ask(server.address, use, timeout=0.5 if fault.kind == "silent" else 60)
        assert raised.value.code in codes


def test_connections_are_reused_and_leaving_cancels() -> None:
    async def use(server: AsyncOpenAIServer) -> None:
        before = stand_in.connections
        for _ in range(3):
            await post(server)
            await events(server)
        assert stand_in.connections == before + 1
        async with server.stream(
            CHAT, server.adapted(CHAT, {"messages": [{"role": "user", "content": "a " * 20_000}]})
        ) as (stream):
            await anext(aiter(stream))
        await wait_until_async(lambda: bool(stand_in.left), "the server to be told", 20)

    with openai_server(delay=0.002) as stand_in:
        ask(stand_in.address, use)


def test_callers_at_the_same_time_share_one_description() -> None:
    async def use(server: AsyncOpenAIServer) -> None:
        before = stand_in.connections
        await asyncio.gather(*(server.facts(refresh=True) for _ in range(8)))
        assert stand_in.connections == before + 2  # the list of models and the version

    with openai_server() as stand_in:
        ask(stand_in.address, use)


def test_the_model_is_the_address_s_or_the_only_one() -> None:
    with openai_server(models=("tea", "coffee")) as server:
        assert ask(f"{server.address}?model=coffee", post)["model"] == "coffee"
        with raises(InflightError, "invalid_parameter", naming="2 models"):
            ask(server.address, post)
        assert ask(server.address, lambda each: post(each, CHAT, {**CHAT_BODY, "model": "tea"}))["model"] == "tea"
        with raises(InflightError, "model_not_found", naming="tea, coffee"):
            ask(f"{server.address}?model=water", post)
        with Client(f"{server.address}?model=coffee") as client:
            assert client.deployment().model == "coffee"
    with openai_server("openai") as server, raises(InflightError, "model_not_found"):
        ask(f"{server.address}?model=water", post)


def test_the_key_is_that_of_the_named_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "another service's")
    monkeypatch.setenv("TEA_KEY", "s3cret")
    with openai_server(key="s3cret") as server:
        assert ask(f"{server.address}?key=TEA_KEY", post)
        with raises(InflightError, "permission_denied"):
            ask(server.address, post)
    assert "s3cret" not in repr(Client("openai+http://127.0.0.1:9?key=TEA_KEY").address)
    for address, named in (
        ("openai+http://tea.example/v1?key=TEA_KEY", "encryption"),
        ("openai+https://tea.example/v1?key=UNSET_KEY", "UNSET_KEY"),
    ):
        with raises(InflightError, "invalid_parameter", naming=named) as raised:
            AsyncOpenAIServer(address)
        assert "s3cret" not in str(raised.value)


def test_another_server_may_have_no_list_of_models() -> None:
    with openai_server() as server:
        wrong = server.address.replace("/v1", "/v9")
        with raises(InflightError, "unsupported_deployment"), Client(wrong) as client:
            client.generate("Tea?")


def test_a_client_of_asyncio_uses_the_same_address() -> None:
    async def run(address: str) -> str:
        async with AsyncClient(address) as client:
            return (await client.generate("Tea?", max_tokens=3)).text

    with openai_server("llama.cpp") as server:
        assert asyncio.run(run(server.address)) == "Answer to Tea?"
    assert server.requests[0].path == COMPLETIONS
