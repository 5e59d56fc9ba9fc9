"""A server of OpenAI's protocol for code that has bodies of its own: batch jobs and the gateway's routes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, NamedTuple

import httpcore2

from inflight_client._async.http_transport import AsyncHttpResponses
from inflight_client._async.openai_transport import AsyncOpenAiTransport
from inflight_client._http.infer_requests import AnswerParser, BodyParser
from inflight_client._http.messages import EventParser, json_object, json_value
from inflight_client._http.responses import malformed
from inflight_client._openai.errors import error_in_frame
from inflight_client._openai.messages import check_event_stream, encoded, finish_reason
from inflight_client._openai.server_facts import OpenAIServerFacts, server_facts
from inflight_client.address import Address, Tls
from inflight_client.deadline import DEFAULT_QUERY_TIMEOUT, NEVER, Deadline
from inflight_client.dialects import adapted, route_path
from inflight_client.errors import InflightError
from inflight_client.settings import ClientSettings

_ERROR = b'"error"'
_DONE = b"[DONE]"
_MAX_END_SECONDS = 1.0
"""How long a stream may take to end after its last event."""


class AsyncOpenAIServer:
    """Any server of OpenAI's protocol, for the tasks of one event loop; close it, or use `async with`.

    `address` is `openai+http(s)://HOST[:PORT][/PATH][?model=NAME&key=VARIABLE&dialect=NAME]`, or `http(s)://.../v1`.
    `timeout` in seconds is the default of all calls. Nothing is sent before the first call, and nothing is retried.
    Routes are OpenAI's paths, such as `/v1/chat/completions`. All methods raise InflightError.
    """

    def __init__(
        self,
        address: str | Address,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        tls: Tls | None = None,
    ) -> None:
        settings = ClientSettings.from_arguments(address, None, headers, tls, timeout, None, None)
        if not settings.address.openai:
            raise InflightError(
                f"{settings.address.url} is not the address of a server of OpenAI's protocol; write"
                " openai+http://HOST:PORT/v1",
                "invalid_parameter",
            )
        self.address = settings.address
        self._timeout = timeout
        self._transport = AsyncOpenAiTransport(settings.address, settings.headers, settings.tls)
        self._facts: OpenAIServerFacts | None = None
        self._asking: asyncio.Task[OpenAIServerFacts] | None = None

    async def facts(self, *, refresh: bool = False) -> OpenAIServerFacts:
        """Return what the server says about itself, asked once; `refresh` asks again."""
        if self._facts is None or refresh:
            if self._asking is None:  # callers at the same time share one query
                self._asking = asyncio.create_task(self._ask())
                self._asking.add_done_callback(self._asked)
            return await asyncio.shield(self._asking)
        return self._facts

    def _asked(self, task: asyncio.Task[OpenAIServerFacts]) -> None:
        self._asking = None
        if not task.cancelled() and task.exception() is None:
            self._facts = task.result()

    async def _ask(self) -> OpenAIServerFacts:
        deadline = Deadline(DEFAULT_QUERY_TIMEOUT, "the server's description")
        entries: list[Mapping[str, Any]] | None = None
        try:
            entries = await self._transport.entries(deadline)
        except InflightError as error:
            if error.code != "unsupported_deployment":
                raise
        name = await self._transport.dialect(deadline)
        version = (await self._transport.server(deadline)).version
        return server_facts(name, self.address.model, entries, version, self.address.url)

    def adapted(self, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body as this server spells it, with its model. Call `facts` once before.

        Raises InflightError `unsupported_input`, which names the field and the server's kind, if the server would
        refuse or ignore a field or has no such route.
        """
        if self._facts is None:
            raise RuntimeError("await facts() before adapted()")
        if not (model := self._facts.model or body.get("model")):
            raise InflightError(
                f"the server at {self.address.url} has {len(self._facts.models)} models; name one in its address, as"
                " ?model=NAME",
                "invalid_parameter",
            )
        return adapted(self._facts.dialect, route, {**body, "model": model})

    async def post(
        self, route: str, body: Mapping[str, Any], *, request_id: str = "", timeout: float | None = None
    ) -> dict[str, Any]:
        """Send an adapted body; return the whole answer. An error's `retry_after` is in seconds."""
        async with self._send(route, body, BodyParser(), request_id, timeout) as parts:
            content = b"".join([part async for part in parts])
        value = json_value(content)
        answer = {"results": value} if isinstance(value, list) else json_object(content)  # SGLang's is a list
        if (error := error_in_frame(answer)) is not None:
            raise error
        try:
            for choice in answer.get("choices") or ():
                choice["finish_reason"] = finish_reason(choice) or None
        except (AttributeError, TypeError) as reason:
            raise malformed("an answer", f"{type(reason).__name__}: {reason}") from None
        return answer

    @asynccontextmanager
    async def stream(
        self, route: str, body: Mapping[str, Any], *, request_id: str = "", timeout: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send an adapted body with `stream`; yields the data of each event without the last, `[DONE]`.

        Reading the first event sends the request. Leaving the block closes the connection, which cancels the answer.
        An error event is raised, and so is a stream that ends without `[DONE]` (`answer_damaged`).
        """
        async with self._send(route, {**body, "stream": True}, EventParser(), request_id, timeout) as parts:
            yield self._events(parts)

    async def _events(self, parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for data in parts:
            if data == _DONE:
                with contextlib.suppress(TimeoutError):  # a connection that is read to its end is used again
                    async with asyncio.timeout(_MAX_END_SECONDS):
                        async for _ in parts:
                            pass
                return
            if _ERROR in data[:64] and (error := error_in_frame(json_object(data))) is not None:
                raise error
            yield data
        raise InflightError(
            f"the answer from {self.address.url} ended before its end; send the request again", "answer_damaged"
        )

    @asynccontextmanager
    async def _send(
        self, route: str, body: Mapping[str, Any], parser: AnswerParser, request_id: str, timeout: float | None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        name = (await self.facts()).dialect
        headers = {"x-request-id": request_id[:64]} if request_id else {}
        request = _Request(route_path(name, route, self._transport.api), encoded(body), headers, parser)
        whole = Deadline.from_timeout(self._timeout if timeout is None else timeout, "the answer")
        responses = AsyncHttpResponses(self._transport, request, whole, NEVER)
        try:
            yield (part.data async for part in responses)  # type: ignore[attr-defined]
        finally:
            await responses.close()

    async def ready(self) -> bool:
        """Return whether the server takes requests; False also if it does not answer."""
        try:
            return await self._transport.ready(Deadline(DEFAULT_QUERY_TIMEOUT, "the server's health"))
        except InflightError:
            return False

    async def close(self) -> None:
        """Close the connections; open calls end with `client_closed`."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncOpenAIServer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Part(NamedTuple):
    data: bytes
    id: str


class _Request:
    """A request whose answer is not decoded. Its parts have its id, so that a connection read to its end is reused."""

    id = "-"

    def __init__(self, path: str, body: bytes, headers: Mapping[str, str], parser: AnswerParser) -> None:
        self.path, self.body, self.headers, self.parser = path, body, headers, parser

    def begin(self, response: httpcore2.Response, where: str) -> None:
        if isinstance(self.parser, EventParser):
            check_event_stream(response, where)

    def parse_event(self, data: bytes) -> Any:
        return _Part(data, self.id)
