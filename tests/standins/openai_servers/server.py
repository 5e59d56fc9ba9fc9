"""The stand-in's HTTP/1.1 server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple

from tests.standins.openai_servers.answers import completion, encoding, frames, token_ids
from tests.standins.openai_servers.kinds import KINDS, error_body


class Fault(NamedTuple):
    """What goes wrong with one request.

    `status` answers with that status; `cut` breaks the connection after the first event (of a whole answer: at once);
    `silent` never answers; `end` ends a stream without its last events; `schema` ignores the format; `garbage` sends
    what is not JSON; `no-usage` leaves the usage out.
    """

    kind: str
    status: int = 0
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class StandIn:
    """A running server and what it received."""

    kind: str
    models: tuple[str, ...]
    faults: Iterator[Fault | None]
    key: str
    delay: float
    port: int = 0
    max_model_len: int = 64
    requests: list[Received] = field(default_factory=list)
    """The POST requests."""
    left: int = 0
    """Requests whose client left before the answer's end."""
    connections: int = 0

    @property
    def address(self) -> str:
        return f"openai+http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self.connections += 1
        try:
            while request := await _read(reader):
                await self._answer(*request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        content: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        kind = KINDS[self.kind]
        if self.key and headers.get("authorization") != f"Bearer {self.key}":
            return _write(writer, 401, error_body(self.kind, 401, "wrong key"))
        if method == "GET":
            if path == "/v1/models":
                cards = [{"id": name, "object": "model", "owned_by": kind.owner or name} for name in self.models]
                return _write(writer, 200, {"object": "list", "data": cards})
            if path.startswith("/v1/models/") and path.removeprefix("/v1/models/") in self.models:
                return _write(writer, 200, {"id": path.removeprefix("/v1/models/")})
            return _write(writer, 200, kind.pages[path]) if path in kind.pages else _write(writer, 404, "<html>")
        if path not in kind.routes:
            return _write(writer, 404, "<html>")
        body = json.loads(content)
        self.requests.append(Received(path, headers, body))
        fault = next(self.faults, None) or Fault("")
        if fault.kind == "status":
            return _write(writer, fault.status, error_body(self.kind, fault.status, "no"), fault.headers)
        if body.get("model") not in (*self.models, None) and self.kind not in ("tgi", "llama.cpp", "trtllm"):
            return _write(writer, 404, error_body(self.kind, 404, f"The model {body['model']} does not exist."))
        if refused := sorted(set(body).intersection(kind.strict)):
            return _write(writer, 400, error_body(self.kind, 400, f"unknown field {refused[0]}"))
        if fault.kind == "silent":
            await self._wait_for_leaving(reader)
            raise ConnectionError
        await asyncio.sleep(self.delay)
        if fault.kind == "garbage":
            return _write(writer, 200, "<html>")
        if fault.kind == "cut" and not body.get("stream"):
            raise ConnectionError
        if path == "/tokenize":
            return _write(writer, 200, {"tokens": token_ids(body["prompt"]), "max_model_len": self.max_model_len})
        if not path.endswith("completions"):
            return _write(writer, 200, encoding(path, body, as_list=self.kind == "sglang"))
        chat = path.endswith("chat/completions")
        answer = completion(body, chat, obey=fault.kind != "schema")
        if body.get("stream"):
            return await self._stream(answer, chat, body, fault, reader, writer)
        if fault.kind == "no-usage":
            del answer["usage"]
        return _write(writer, 200, answer)

    async def _stream(
        self,
        answer: dict[str, Any],
        chat: bool,
        body: dict[str, Any],
        fault: Fault,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        usage = (body.get("stream_options") or {}).get("include_usage") and fault.kind != "no-usage"
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        _write_chunk(writer, b": keep-alive\n\n")
        leaving = asyncio.ensure_future(self._wait_for_leaving(reader))
        try:
            for frame in frames(answer, chat, bool(usage)):
                _write_chunk(writer, b"data: " + json.dumps(frame).encode() + b"\n\n")
                await asyncio.wait([leaving], timeout=self.delay)
                if leaving.done() or fault.kind == "cut":
                    raise ConnectionError
                if fault.kind == "end":
                    break
            else:
                _write_chunk(writer, b"data: [DONE]\n\n")
        finally:
            leaving.cancel()
            await asyncio.wait([leaving])
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _wait_for_leaving(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read(1)  # a client sends nothing before the answer's end
        self.left += 1


async def _read(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str], bytes] | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    content = await reader.readexactly(int(headers.get("content-length", 0)))
    return first.split()[0], first.split()[1], headers, content


def _write(writer: asyncio.StreamWriter, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
    content = body.encode() if isinstance(body, str) else b"" if body is None else json.dumps(body).encode()
    kind = "text/html" if isinstance(body, str) else "application/json"
    fields = {"content-type": kind, "content-length": str(len(content)), **(headers or {})}
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Overloaded"
    head = f"HTTP/1.1 {status} {phrase}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    writer.write(head.encode() + b"\r\n" + content)


def _write_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


@contextmanager
def openai_server(
    kind: str = "vllm",
    models: tuple[str, ...] = ("tea",),
    *,
    faults: Iterable[Fault | None] = (),
    key: str = "",
    delay: float = 0.0,
) -> Iterator[StandIn]:
    """Run a server of that kind (`KINDS`) whose POST requests meet the faults in order, then none.

    `key` is the API key that it asks for; `delay` is waited before an answer, and after each event of a stream.
    """
    server = StandIn(kind, models, iter(faults), key, delay)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(server.serve, "127.0.0.1", 0)

    async def stop() -> None:
        listener.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    listener = asyncio.run_coroutine_threadsafe(start(), loop).result()
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
