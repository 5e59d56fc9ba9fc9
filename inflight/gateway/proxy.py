"""Passes a request on to a server of OpenAI's protocol, and its answer back under the gateway's names."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from inflight_client import InflightError
from inflight_client.results import Usage

from inflight.gateway.backends import BackendServer
from inflight.gateway.checks.gate import BLOCKED, ChoiceGate, checked_choice
from inflight.gateway.http import Request, Response
from inflight.openai_api.errors import ApiError
from inflight.openai_api.events import events_of
from inflight.openai_api.frames import (
    DONE,
    KEEP_ALIVE,
    ChoiceFrames,
    ChoiceWriter,
    error_frame,
    event_frame,
    usage_frame,
)
from inflight.openai_api.response import ResponseHead, logprobs_of
from inflight.openai_api.responses import ResponsesWriter

_PREFIXES = {"/v1/chat/completions": "chatcmpl-", "/v1/completions": "cmpl-"}
_LISTS = {"/v1/embeddings": "data", "/v1/rerank": "results", "/v1/classify": "data"}
"""What an answer must have, if not choices."""


def honoured(body: Mapping[str, Any], no_effect: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a body that the gateway does not ignore."""
    return {name: value for name, value in body.items() if value is not None and name not in no_effect}


@dataclass(frozen=True)
class Passed:
    """What is passed on: a body that the gateway's parsers have accepted, for a route of OpenAI's API.

    `model` is the application's name of the model, `target_model` the server's. `until` is a moment of the monotonic
    clock. `texts` are those of a request for an encoder, `responses` what an answer of the Responses API repeats, and
    `gate` returns what a choice passes.
    """

    route: str
    body: Mapping[str, Any]
    model: str
    target_model: str
    request_id: str
    until: float
    estimated_tokens: int
    stream: bool = False
    include_usage: bool = False
    texts: int = 0
    responses: Mapping[str, Any] | None = None
    keep_alive_seconds: float = 10.0
    choices: int = 1
    gate: Callable[[], ChoiceGate | None] = lambda: None


class Proxy:
    """One request at one server."""

    def __init__(self, passed: Passed, server: BackendServer) -> None:
        """Raises ApiError, which names it, for a field or a route that the server does not have."""
        self._passed, self._server = passed, server
        self._streams = passed.stream or passed.responses is not None
        body = {**passed.body, "model": passed.target_model, "stream": None, "stream_options": None}
        if self._streams:
            body["stream_options"] = {"include_usage": True}
        try:
            self._body = server.client.adapted(passed.route, body)
        except InflightError as error:
            param = next((name for name in passed.body if f" {name};" in str(error) or f" {name} " in str(error)), None)
            raise ApiError.from_error(error, param) from None
        head_id, now = secrets.token_hex(12), int(time.time())
        self._names = {"model": passed.model, "id": _PREFIXES.get(passed.route, "") + head_id}
        self._head = ResponseHead(head_id, now, passed.model, passed.route == "/v1/chat/completions")
        self._responses = None
        if passed.responses is not None:
            self._responses = ResponsesWriter(self._head, passed.responses, f"call_{head_id[:16]}")
        self._written: dict[int, tuple[ChoiceWriter, ChoiceGate | None]] = {}
        """By the index of a choice, those that go through a writer of ours."""
        self._usage: Usage | None = None
        self._pieces = 0

    async def respond(self, request: Request) -> None:
        """Answer the request. Raises ApiError or InflightError while nothing of the response was sent."""
        request.outcome.sent = True
        request.outcome.prompt_tokens = self._passed.estimated_tokens
        try:
            if self._streams:
                await self._stream(request)
            else:
                await self._whole(request)
        except InflightError as error:
            self._server.note_failure(error)
            api_error = ApiError.from_error(error)
            if not request.started:
                raise api_error from None
            request.outcome.error = api_error.body()["error"]["code"]
            failed = self._responses.failed(api_error) if self._responses else error_frame(api_error.body())
            await request.end(failed)

    @property
    def _options(self) -> dict[str, Any]:
        left = self._passed.until - time.monotonic()
        return {"request_id": self._passed.request_id, "timeout": max(0.001, left)}

    async def _whole(self, request: Request) -> None:
        answer = await self._server.client.post(self._passed.route, self._body, **self._options)
        outcome, texts = request.outcome, self._passed.texts
        expected = _LISTS.get(self._passed.route, "choices")
        if not isinstance(answer.get(expected), list):
            raise InflightError(f"the answer has no {expected}; send the request again", "answer_damaged")
        self._take_usage(answer, request)
        choices = answer[expected] if expected == "choices" else []
        for index, choice in enumerate(choices):
            gate = self._passed.gate()
            try:
                choices[index] = choice = await checked_choice(choice, gate)
                if gate is not None and not await gate.shows_prompt(answer):
                    answer.pop("prompt_logprobs", None)
            except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
                raise _damaged("the answer", error) from None
            outcome.finish_reasons[index] = str(choice.get("finish_reason") or "stop")
        outcome.answered, outcome.texts = True, texts
        outcome.first_token_at = None if texts else time.monotonic()
        self._count(request)
        request.answered()
        await request.respond(Response(answer | {name: each for name, each in self._names.items() if name in answer}))

    async def _stream(self, request: Request) -> None:
        async with self._server.client.stream(self._passed.route, self._body, **self._options) as events:
            first = asyncio.ensure_future(anext(events, None))
            beat: asyncio.Task[None] | None = None
            try:
                await asyncio.wait((first,), timeout=self._passed.keep_alive_seconds)
                if first.done():
                    await first  # raises while another target may still be asked
                if self._passed.stream:
                    if not request.started:
                        await request.start_stream()
                    beat = asyncio.create_task(request.keep_alive(self._passed.keep_alive_seconds))
                    await request.write(self._responses.first() if self._responses else KEEP_ALIVE)
                data = await first
                async for frame in self._frames(data, events, request):
                    if frame and self._passed.stream:
                        await request.write(frame)
            finally:
                first.cancel()
                if beat is not None:
                    beat.cancel()
        self._count(request)
        request.answered()
        await self._end(request)

    async def _end(self, request: Request) -> None:
        if self._responses is None:
            await request.end(DONE)
        elif self._passed.stream:
            await request.end(self._responses.last(self._usage))
        else:
            await request.respond(Response(self._responses.body(self._usage)))

    async def _frames(self, data: bytes | None, events: AsyncIterator[bytes], request: Request) -> AsyncIterator[bytes]:
        """Yield each event under our names; an event of the usage alone only if it was asked for."""
        written = self._responses is not None or self._passed.gate() is not None
        while data is not None:
            try:
                event = orjson.loads(data)
                choices = event.get("choices") or []
                self._take_usage(event, request)
                for choice in choices:
                    self._note(choice, request)
                if choices and written:
                    for choice in choices:
                        yield await self._frame(choice, request)
                elif choices or self._passed.include_usage:
                    event |= self._names
                    if not self._passed.include_usage:
                        event.pop("usage", None)
                    yield event_frame(event)
            except (ValueError, AttributeError, KeyError, TypeError) as error:
                raise _damaged("an event of the answer", error) from None
            blocked = [gate for _, gate in self._written.values() if gate is not None and gate.blocked]
            if len(blocked) == self._passed.choices:  # the server's usage would come after the rest
                self._usage = self._usage or self._estimated_usage
                if self._passed.include_usage:
                    yield usage_frame(self._head, self._usage)
                return
            data = await anext(events, None)

    async def _frame(self, choice: Mapping[str, Any], request: Request) -> bytes:
        index, begun = int(choice.get("index") or 0), b""
        if index not in self._written:
            writer: ChoiceWriter = self._responses or ChoiceFrames(
                self._head, index, False, f"call_{self._head.id[:16]}{index:02x}"
            )
            begun = b"" if self._responses else writer.first()
            self._written[index] = writer, self._passed.gate()
        writer, gate = self._written[index]
        if gate is not None and gate.blocked:
            request.outcome.finish_reasons[index] = BLOCKED
            return begun
        delta, reason = choice.get("delta") or {"content": choice.get("text")}, choice.get("finish_reason")
        events, scores = events_of(delta), logprobs_of(choice)
        if gate is not None:
            events, scores = await gate.feed_in_thread(events, scores), []
            if reason or gate.blocked:
                last, shown = await gate.end()
                events, scores = [*events, *last], list(shown)
            if gate.blocked:
                reason = request.outcome.finish_reasons[index] = BLOCKED
        written = begun + writer.events(events, scores)
        return written + writer.finish(reason) if reason else written

    def _note(self, choice: Mapping[str, Any], request: Request) -> None:
        outcome = request.outcome
        if outcome.first_token_at is None:
            outcome.first_token_at, outcome.answered = time.monotonic(), True
        self._pieces += 1
        outcome.streamed = self._pieces
        if choice.get("finish_reason"):
            outcome.finish_reasons[int(choice.get("index") or 0)] = str(choice["finish_reason"])

    def _take_usage(self, answer: Mapping[str, Any], request: Request) -> None:
        usage = answer.get("usage")
        if isinstance(usage, Mapping):
            sent = usage.get("prompt_tokens", usage.get("total_tokens"))
            self._usage = Usage(int(sent or 0), int(usage.get("completion_tokens") or 0))

    @property
    def _estimated_usage(self) -> Usage:
        return Usage(self._passed.estimated_tokens, self._pieces)

    def _count(self, request: Request) -> None:
        """Count what the server reports, or else what was estimated of the prompt, and the pieces of the answer."""
        used = self._usage or self._estimated_usage
        request.outcome.input_tokens, request.outcome.output_tokens = used.input_tokens, used.output_tokens


def _damaged(what: str, error: Exception) -> InflightError:
    return InflightError(f"{what} is damaged ({type(error).__name__}); send the request again", "answer_damaged")
