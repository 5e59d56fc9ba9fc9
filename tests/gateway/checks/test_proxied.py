"""Answers of servers of OpenAI's protocol keep their log probabilities and their usage, as far as checks let them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import TypeAdapter

from inflight.gateway.checks.checks import Checks
from inflight.gateway.checks.specs import CheckSpec
from inflight.gateway.http import BodyMemory, Request
from inflight.gateway.metrics import GatewayMetrics
from inflight.gateway.proxy import Passed, Proxy
from tests.gateway.checks.scripted import read

DENY = {"kind": "deny", "words": ["hemlock"], "at": "after"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 9}


class Server:
    """Answers with these pieces, of which each has the same likeliest tokens."""

    def __init__(self, chat: bool, pieces: Sequence[str], top: Sequence[str]) -> None:
        self._chat, self._pieces, self._top = chat, pieces, top
        self.client, self.given = self, 0

    def adapted(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        return body

    def _choice(self, pieces: Sequence[str], name: str, reason: str | None) -> dict[str, Any]:
        text = "".join(pieces)
        if not self._chat:
            tops = [dict.fromkeys(self._top, -0.5) for _ in pieces]
            scores: Any = {
                "tokens": pieces,
                "token_logprobs": [-0.1] * len(pieces),
                "top_logprobs": tops,
            }
            return {"index": 0, "text": text, "finish_reason": reason, "logprobs": scores}
        others = [{"token": each, "logprob": -0.5, "bytes": None} for each in self._top]
        scores = [{"token": each, "logprob": -0.1, "bytes": list(each.encode())} for each in pieces]
        content = {"content": [{**each, "top_logprobs": others} for each in scores]}
        return {"index": 0, name: {"content": text}, "finish_reason": reason, "logprobs": content}

    @asynccontextmanager
    async def stream(self, route: str, body: Any, **options: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        async def events() -> AsyncIterator[bytes]:
            for each in self._pieces:
                self.given += 1
                yield json.dumps({"choices": [self._choice([each], "delta", None)]}).encode()
            yield json.dumps({"choices": [self._choice([], "delta", "stop")]}).encode()
            yield json.dumps({"choices": [], "usage": USAGE}).encode()

        yield events()

    async def post(self, route: str, body: Any, **options: Any) -> dict[str, Any]:
        answer: dict[str, Any] = {"choices": [self._choice(self._pieces, "message", "stop")], "usage": USAGE}
        places = {str(number): {"decoded_token": each, "logprob": -0.5} for number, each in enumerate(self._top)}
        (answer if self._chat else answer["choices"][0])["prompt_logprobs"] = [None, places]
        return answer


def answer(
    pieces: Sequence[str], *checks: dict[str, Any], top: Sequence[str] = (), lasting: int = 99, **passed: Any
) -> tuple[str, Request]:
    """Return what a client gets of an answer. The list of checks is there until so many pieces have come."""
    sent = bytearray()

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.extend(message.get("body", b""))

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b""}

    async def run() -> Request:
        request = Request({"method": "POST", "path": "/", "headers": []}, receive, send, "id", 2**24, BodyMemory(2**26))
        values = {"route": "/v1/chat/completions", **passed}
        specs = TypeAdapter(tuple[CheckSpec, ...]).validate_python(checks or (DENY,))
        server: Any = Server("chat" in values["route"], pieces, top)
        gates = Checks(
            lambda: specs if server.given <= lasting else (),
            GatewayMetrics(lambda: True).checks,
            lambda model: pytest.fail("no classifier"),
        )
        given = Passed(
            *(values.pop("route"), {}, "tea", "tea", "id", time.monotonic() + 60, 3),
            gate=lambda: gates.gate("tea", request.outcome, None),
            **values,
        )
        await Proxy(given, server).respond(request)
        return request

    request = asyncio.run(run())
    return sent.decode(), request


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
def test_log_probabilities_are_there_without_likely_tokens_that_a_check_would_cut(route: str, stream: bool) -> None:
    for top, is_there in ((("green", "black"), True), (("green", "hemlock"), False)):
        found, _ = answer(["A ", "cup"], top=top, route=route, stream=stream)
        assert read(found)["logprobs"] == read(found)["text"] == "A cup"
        assert ("green" in found, "hemlock" in found) == (is_there, False)
    found, _ = answer(["A hem", "lock"], top=["green"], route=route, stream=stream)
    assert (read(found)["logprobs"], read(found)["text"], "green" in found) == ("", "A ", False)


def test_a_blocked_stream_has_its_usage() -> None:
    found, request = answer(["A ", "hemlock ", "cup"], stream=True, include_usage=True)
    frames = [json.loads(line[6:]) for line in found.splitlines() if line.startswith("data: {")]
    assert [frame["usage"]["total_tokens"] for frame in frames if not frame["choices"]] == [3 + 2]
    assert request.outcome.output_tokens == 2
    for stream in (False, True):
        found, _ = answer(["A ", "hemlock ", "cup"], stream=stream, responses={})
        last = json.loads(found.splitlines()[-2].removeprefix("data: ")) if stream else {"response": json.loads(found)}
        assert (last["response"]["status"], last["response"]["usage"]["output_tokens"]) == ("incomplete", 2)


def test_a_list_that_changes_applies_to_later_answers() -> None:
    found, _ = answer(["A hem", "lock", " cup"], {**DENY, "action": "redact"}, stream=True, lasting=1)
    assert read(found)["text"] == "A [deny] cup"


@pytest.mark.parametrize("stream", [False, True])
def test_a_long_answer_is_checked_while_others_are_answered(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.001)
            ticks.append(time.monotonic())

    respond = Proxy.respond

    async def ticking(self: Proxy, request: Request) -> None:
        ticker = asyncio.create_task(tick())
        await respond(self, request)
        ticker.cancel()

    monkeypatch.setattr(Proxy, "respond", ticking)
    found, _ = answer(["1234567 " * 2000], {"kind": "pii"}, stream=stream)
    assert read(found)["text"] == "1234567 " * 2000
    assert len(ticks) > 5
    monkeypatch.setattr("inflight.gateway.checks.text_gate._MAX_TRIES", 100)
    found, request = answer(["1234567 " * 2000], {"kind": "pii"}, stream=stream)
    assert (read(found)["text"], read(found)["finish"]) == ("", "content_filter")
    assert request.outcome.checks == ["pii=failed"]
