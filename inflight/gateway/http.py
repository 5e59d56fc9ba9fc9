"""HTTP requests and responses on bare ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import orjson

from inflight.gateway.outcome import Outcome
from inflight.gateway.spans import RequestSpan
from inflight.openai_api.errors import ApiError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_DEPTH = 100
"""Of JSON, below the limits of every library that reads it later."""


_SILENT_SECONDS = 60.0
"""How long a client may pause while it sends a body."""
_DISCARD_BYTES = 64 * 2**20
_DISCARD_SECONDS = 10.0
_BUFFER_BYTES = 2**20


class DisconnectedError(Exception):
    """The client left before it had sent its whole request."""


@dataclass(frozen=True)
class Response:
    """A whole response; a dict as `body` becomes JSON."""

    body: bytes | Mapping[str, Any]
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class Request:
    """One HTTP request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str, max_body: int) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.raw_path: bytes = scope.get("raw_path") or self.path.encode()
        self.headers: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self.query: dict[str, str] = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        self.client = (scope.get("client") or ("", 0))[0]
        self.request_id = request_id
        self.response_headers: dict[str, str] = {}
        self.status = 0
        self.started = self.has_events = False
        self.frames = 0
        self.outcome = Outcome()
        self.span: RequestSpan | None = None
        self._receive, self._send, self._max_body = receive, send, max_body

    async def body(self) -> bytes:
        """Read the whole body. Raises ApiError 413 before it holds more than the limit, DisconnectedError."""
        length = self.headers.get("content-length", "0")
        parts: list[bytes] = []
        size = int(length) if length.isdigit() else 0
        if size <= self._max_body:
            size = 0
            async for part in self.chunks():
                size += len(part)
                if size > self._max_body:
                    break
                parts.append(part)
            else:
                return b"".join(parts)
        await self._discard()
        # What is left of the body is not read, so the connection can't be used again.
        raise ApiError(
            f"the body has more than {self._max_body} bytes; shorten the request",
            "request_too_large",
            status=413,
            headers={"connection": "close"},
        )

    async def chunks(self) -> Any:
        """Yield the body in the pieces in which it arrives."""
        more = True
        while more:
            try:
                async with asyncio.timeout(_SILENT_SECONDS):
                    message = await self._receive()
            except TimeoutError:
                raise ApiError(
                    f"no more of the body came for {_SILENT_SECONDS:g} s; send the request again",
                    "invalid_request",
                    status=408,
                    headers={"connection": "close"},
                ) from None
            if message["type"] == "http.disconnect":
                raise DisconnectedError
            yield message.get("body", b"")
            more = message.get("more_body", False)

    async def json(self) -> Any:
        """Return the body's JSON. Raises ApiError."""
        kind = self.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError("the body's Content-Type must be application/json", "invalid_request", status=400)
        raw = await self.body()
        try:
            value = orjson.loads(raw)
        except ValueError as error:
            raise ApiError(f"the body is not JSON: {str(error)[:100]}", "invalid_request") from None
        if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _deeper(value, MAX_DEPTH):
            raise ApiError(f"the body is nested more than {MAX_DEPTH} levels deep", "invalid_request")
        return value

    async def disconnected(self) -> None:
        """Wait until the client leaves; only once the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def respond(self, response: Response) -> None:
        body = response.body if isinstance(response.body, bytes) else orjson.dumps(response.body)
        headers = self.response_headers | {"content-length": str(len(body)), "content-type": response.content_type}
        await self._start(response.status, headers | dict(response.headers))
        await self._send({"type": "http.response.body", "body": b"" if self.method == "HEAD" else body})

    async def start_stream(self) -> None:
        """Start a response of server-sent events; nothing on the way may keep them back."""
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
        }
        self.has_events = True
        await self._start(200, self.response_headers | headers)

    async def start_content(self, content_type: str, size: int | None) -> None:
        """Start a response, whose bytes are then written; None: so many as there will be."""
        headers = {"content-type": content_type} | ({} if size is None else {"content-length": str(size)})
        await self._start(200, self.response_headers | headers)

    async def respond_in_parts(self, parts: Iterator[bytes]) -> None:
        """Send JSON that is made part by part. What is longer than a buffer is sent while it is made."""
        held: list[bytes] = []
        for part in parts:
            held.append(part)
            if sum(map(len, held)) > _BUFFER_BYTES:
                if not self.started:
                    await self.start_content("application/json", None)
                await self.write(b"".join(held))
                held.clear()
            await asyncio.sleep(0)
        if self.started:
            await self.end(b"".join(held))
        else:
            await self.respond(Response(b"".join(held)))

    async def write(self, frame: bytes) -> None:
        self.frames += 1
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})

    async def end(self, frame: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": frame})

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started, self.status = True, status
        raw = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _discard(self) -> None:
        """Read on for a while: many clients read the response only once they have sent everything."""
        size = 0
        with suppress(TimeoutError, DisconnectedError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                async for part in self.chunks():
                    size += len(part)
                    if size > _DISCARD_BYTES:
                        return


def _deeper(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth + 1):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


async def cancel_on_disconnect(request: Request, work: Callable[[], Awaitable[None]]) -> bool:
    """Run `work`, and cancel it when the client leaves; return whether it ran to its end."""
    task = asyncio.ensure_future(work())
    watch = asyncio.ensure_future(request.disconnected())
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
            return True
        return False
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)
