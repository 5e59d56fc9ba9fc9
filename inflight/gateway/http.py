"""HTTP requests and responses on bare ASGI."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import orjson

from inflight.common.json_values import has_more_values
from inflight.gateway.outcome import Outcome
from inflight.gateway.spans import RequestSpan
from inflight.openai_api.errors import ApiError
from inflight.openai_api.frames import KEEP_ALIVE

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

Parsed = TypeVar("Parsed")

MAX_DEPTH = 100
"""Of JSON, below the limits of every library that reads it later."""
MAX_VALUES = 100_000
"""Of JSON, so that parsing it takes a moment whatever its size is."""

_LARGE_BYTES = 64 * 1024
"""A larger body is parsed by a thread, while the event loop serves others."""
_SILENT_SECONDS = 60.0
"""How long a client may pause while it sends a body."""
_LEAST_BYTES_PER_SECOND = 16 * 1024
"""How fast a body must come, after the first `_SILENT_SECONDS`."""
_UNREAD_SECONDS = 30.0
"""How long a client may leave a response unread that waits to be sent."""
_MAX_KEPT_BYTES = 2**20
_DISCARD_BYTES = 64 * 2**20
_DISCARD_SECONDS = 10.0
_BUFFER_BYTES = 2**20
_ENCODINGS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""Content codings, with zlib's window of each."""


class DisconnectedError(Exception):
    """The client left before it had sent its whole request."""


@dataclass(frozen=True)
class Response:
    """A whole response; a dict as `body` becomes JSON."""

    body: bytes | Mapping[str, Any]
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class BodyMemory:
    """Bounds the bytes of all bodies that are held at a time."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def take(self, size: int) -> None:
        """Raise ApiError 503 unless there is room."""
        if size > self._left:
            raise ApiError(
                "the gateway holds too many large requests; send the request again",
                "overloaded",
                status=503,
                headers={"retry-after": "2", "connection": "close"},
            )
        self._left -= size

    def give_back(self, size: int) -> None:
        self._left += size


class Request:
    """One HTTP request and its response."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, request_id: str, max_body: int, memory: BodyMemory
    ) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.raw_path: bytes = scope.get("raw_path") or self.path.encode()
        self.headers: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        directives = [value for name, value in scope["headers"] if name == b"cache-control"]  # it may come twice
        self.headers["cache-control"] = b",".join(directives).decode("latin-1")
        self.query: dict[str, str] = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        self.client = (scope.get("client") or ("", 0))[0]
        self.request_id = request_id
        self.response_headers: dict[str, str] = {}
        self.status = 0
        self.started = self.has_events = False
        self.frames = 0
        self.outcome = Outcome()
        self.span: RequestSpan | None = None
        self.answered: Callable[[], None] = lambda: None
        """Called once the server's answer is complete, before the rest of the response is written."""
        self.kept: bytearray | None = None
        """What was sent of the response's body, if it is to be kept and not too long for it."""
        self._receive, self._send_message, self._max_body = receive, send, max_body
        self._abort: Callable[[], None] = scope.get("state", {}).get("abort", lambda: None)
        self._memory, self._held = memory, 0
        self._more, self._ended = True, False
        self._on_close: list[Callable[[], None]] = []

    def detached(self, send: Send, request_id: str) -> Request:
        """Return a request without a client, whose response goes to `send`."""
        scope = {"method": self.method, "path": self.path, "headers": []}
        receive: Any = asyncio.Event().wait  # nothing comes
        return Request(scope, receive, send, request_id, 0, BodyMemory(0))

    async def keep_alive(self, seconds: float) -> None:
        """Write a comment into a stream before nothing was written for so long, so that no proxy ends it."""
        while True:
            seen = self.frames
            await asyncio.sleep(seconds / 2)
            if self.frames == seen:
                with suppress(DisconnectedError):  # the connection is closed then
                    await self.write(KEEP_ALIVE)

    def on_close(self, work: Callable[[], None]) -> None:
        """Do something at the request's end."""
        self._on_close.append(work)

    def close(self) -> None:
        """Give back what the request holds."""
        for work in self._on_close:
            work()
        self._memory.give_back(self._held)
        self._held = 0

    async def body(self) -> bytes:
        """Read the whole body, decompressed.

        Raises ApiError 413 before it holds more than the limit, 415 for an unknown coding, 503 if other bodies hold the
        memory, DisconnectedError.
        """
        length = self.headers.get("content-length", "0")
        decode = self._decoder()
        parts: list[bytes] = []
        size = int(length) if length.isdigit() else 0
        if size <= self._max_body:
            async for part in self.chunks():
                decoded = decode(part, self._max_body - self._held + 1)
                if len(decoded) > self._max_body - self._held:
                    break
                self._memory.take(len(decoded))
                self._held += len(decoded)
                parts.append(decoded)
            else:
                return b"".join(parts)
        raise await self.too_large(self._max_body)

    async def too_large(self, most: int) -> ApiError:
        """Return the error of a body with more bytes."""
        await self.discard()
        # What is left of the body is not read, so the connection can't be used again.
        return ApiError(
            f"the body has more than {most} bytes; shorten the request",
            "request_too_large",
            status=413,
            headers={"connection": "close"},
        )

    def _decoder(self) -> Callable[[bytes, int], bytes]:
        """Return what decodes the next piece of the body to at most so many bytes. Raises ApiError 415."""
        coding = self.headers.get("content-encoding", "").strip().lower()
        if coding in ("", "identity"):
            return lambda part, most: part
        if coding not in _ENCODINGS:
            raise ApiError(
                f"the Content-Encoding {coding[:40]!r} is unknown; send the body with gzip, deflate, or as it is",
                "unsupported_input",
                status=415,
                headers={"accept-encoding": "gzip, deflate, identity"},
            )
        stream = zlib.decompressobj(_ENCODINGS[coding])

        def decode(part: bytes, most: int) -> bytes:
            try:
                return stream.decompress(part, most)
            except zlib.error:
                raise ApiError(
                    f"the body is not {coding}; send what Content-Encoding says", "invalid_request"
                ) from None

        return decode

    async def chunks(self) -> Any:
        """Yield the body in the pieces in which it arrives, as it was sent. Raises ApiError 408, DisconnectedError."""
        size, began = 0, time.monotonic()
        while self._more:
            late = began + _SILENT_SECONDS + size / _LEAST_BYTES_PER_SECOND - time.monotonic()
            try:
                async with asyncio.timeout(min(_SILENT_SECONDS, late)):
                    message = await self._receive()
            except TimeoutError:
                raise ApiError(
                    f"the body came too slowly ({size} bytes in {time.monotonic() - began:.0f} s); send the request"
                    " again",
                    "invalid_request",
                    status=408,
                    headers={"connection": "close"},
                ) from None
            if message["type"] == "http.disconnect":
                raise DisconnectedError
            part = message.get("body", b"")
            size += len(part)
            self._more = message.get("more_body", False)
            yield part

    def timeout(self, most: float) -> float:
        """Return the seconds that the answer may take: the caller's deadline, but at most these. Raises ApiError."""
        deadline = self.headers.get("x-inflight-deadline-ms", "")
        if not deadline:
            return most
        if not re.fullmatch(r"[0-9]{1,9}", deadline) or not int(deadline):
            raise ApiError(
                f"x-inflight-deadline-ms is {deadline[:40]!r}; it must be a whole number of milliseconds",
                "invalid_parameter",
            )
        return min(int(deadline) / 1000, most)

    async def json(self, parse: Callable[[Any], Parsed], most_values: int = MAX_VALUES) -> Parsed:
        """Return what `parse` makes of the body's JSON, in a thread if the body is large. Raises ApiError."""
        kind = self.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError("the body's Content-Type must be application/json", "invalid_request", status=400)
        raw = await self.body()
        if len(raw) <= _LARGE_BYTES:
            return parse(_loads(raw, most_values))
        return await asyncio.to_thread(lambda: parse(_loads(raw, most_values)))

    async def disconnected(self) -> None:
        """Wait until the client leaves before the response's end; only once the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._ended:  # then the same message says that the response is complete
            await asyncio.Event().wait()

    async def respond(self, response: Response) -> None:
        body = response.body if isinstance(response.body, bytes) else orjson.dumps(response.body)
        headers = self.response_headers | {"content-length": str(len(body)), "content-type": response.content_type}
        await self._start(response.status, headers | dict(response.headers))
        await self.end(b"" if self.method == "HEAD" else body)

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

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        """Raises DisconnectedError for a client that does not read; its connection is closed then."""
        if self.kept is not None:
            self.kept += message.get("body", b"")
            if len(self.kept) > _MAX_KEPT_BYTES:
                self.kept = None
        try:
            async with asyncio.timeout(_UNREAD_SECONDS):
                await self._send_message(message)
        except TimeoutError:
            self._abort()
            raise DisconnectedError from None

    async def write(self, frame: bytes) -> None:
        self.frames += 1
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})

    async def end(self, frame: bytes = b"") -> None:
        self._ended = True
        await self._send({"type": "http.response.body", "body": frame})

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started, self.status = True, status
        raw = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def discard(self) -> None:
        """Read on for a while: many clients read the response only once they have sent everything."""
        size = 0
        with suppress(TimeoutError, DisconnectedError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                async for part in self.chunks():
                    size += len(part)
                    if size > _DISCARD_BYTES:
                        return


def log_request(request: Request, tenant: str, seconds: float, began: float) -> None:
    """Print one line of JSON, without prompts and answers."""
    outcome = request.outcome
    first = outcome.first_token_at
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": request.request_id,
        "method": request.method,
        "path": request.path,
        "status": request.status,
        "tenant": tenant,
        "client": request.client,
        "model": outcome.model or None,
        "stream": request.has_events,
        "code": outcome.error or None,
        "param": outcome.param,
        "finish_reasons": [reason for _, reason in sorted(outcome.finish_reasons.items())],
        **({"texts": outcome.texts} if outcome.texts else {}),
        "input_tokens": outcome.input_tokens,
        "output_tokens": outcome.output_tokens,
        "first_token_seconds": None if first is None else round(first - began, 6),
        "total_seconds": round(seconds, 6),
    }
    print(json.dumps(line), file=sys.stderr, flush=True)


def _loads(raw: bytes, most_values: int) -> Any:
    if has_more_values(raw, most_values):
        raise ApiError(
            f"the body has more than {most_values} values; send fewer in a request", "request_too_large", status=413
        )
    try:
        value = orjson.loads(raw)
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {str(error)[:100]}", "invalid_request") from None
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _deeper(value, MAX_DEPTH):
        raise ApiError(f"the body is nested more than {MAX_DEPTH} levels deep", "invalid_request")
    return value


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
