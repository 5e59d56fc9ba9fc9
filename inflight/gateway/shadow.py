"""Copies of requests to the shadow target of a route, whose answers are kept beside those that clients got.

A copy begins once the client has its whole answer, and only while the target has room; no request waits for one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import orjson
from inflight_client import InflightError
from prometheus_client import Counter, Gauge

from inflight.gateway.http import Request
from inflight.gateway.key_ring import Caller
from inflight.gateway.work import Attempt
from inflight.openai_api.errors import ApiError

MAX_FILE_BYTES = 2**30
"""Of a file of answers; it is left as it is then."""
_MAX_COPIES = 4
"""At a time, so that the gateway's work for them stays small."""
logger = logging.getLogger("inflight.gateway")


class Shadows:
    """The copies of one process."""

    def __init__(
        self,
        copies: Counter,
        waiting: Gauge,
        on_end: Callable[[str, Request, Caller], None] = lambda event, copy, caller: None,
    ) -> None:
        """`copies` counts them by route and result: answered, failed, or dropped without being sent.

        `on_end` is called for each that was sent, with the event `shadow`.
        """
        self._copies, self._waiting, self._on_end = copies, waiting, on_end
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def copy(
        self,
        request: Request,
        caller: Caller,
        body: Mapping[str, Any],
        file: Path,
        until: float,
        begin: Callable[[Request], Attempt | None],
    ) -> None:
        """Copy a request that was answered, in a task of its own, and append a row with both answers to the file.

        `begin` returns what the copy does at the target; None if that has no room.
        """
        got = bytes(request.kept or b"")
        if not got or request.outcome.error:
            return
        if len(self._tasks) >= _MAX_COPIES:
            self._copies.labels(request.outcome.model, "dropped").inc()
            return
        task = asyncio.create_task(self._copy(request, caller, got, body, file, until, begin))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _copy(
        self,
        request: Request,
        caller: Caller,
        got: bytes,
        body: Mapping[str, Any],
        file: Path,
        until: float,
        begin: Callable[[Request], Attempt | None],
    ) -> None:
        route, result, answer, error = request.outcome.model, "failed", b"", None
        copy, sent = _copied(request)
        try:
            attempt = begin(copy)
            if attempt is None:
                self._copies.labels(route, "dropped").inc()
                return
            await attempt.run(copy, caller, until, self._waiting)
            result, answer = "answered", b"".join(sent)
        except ApiError as failure:
            error = failure.body()["error"]
        except InflightError as failure:
            error = ApiError.from_error(failure).body()["error"]
        except Exception:
            logger.exception("a copy of request %s failed", request.request_id)
            error = {"message": "the copy failed; see the gateway's log", "code": "internal_error"}
        self._copies.labels(route, result).inc()
        copy.outcome.model, copy.outcome.error = route, error["code"] if error else ""
        self._on_end("shadow", copy, caller)
        target = copy.response_headers.get("x-inflight-target")

        def keep() -> None:
            response = {"status_code": 200, "request_id": copy.request_id, "target": target}
            row = {
                "custom_id": request.request_id,
                "model": route,
                "created": int(time.time()),
                "request": body,
                "response": {**response, "body": orjson.loads(answer)} if answer else None,
                "error": error,
                "primary": {
                    "target": request.response_headers.get("x-inflight-target"),
                    **_described(got, request.has_events),
                },
            }
            _append(file, orjson.dumps(row) + b"\n")

        try:
            await asyncio.to_thread(keep)
        except (OSError, ValueError) as failure:
            logger.error("an answer of a shadow can't be kept in %s: %s", file, failure)


def _copied(request: Request) -> tuple[Request, list[bytes]]:
    """Return a request without a client, and what will be written for it."""
    sent: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message.get("body", b""))

    return request.detached(send, f"{request.request_id}-shadow"), sent


def _described(got: bytes, events: bool) -> dict[str, Any]:
    """Return the texts of an answer, their SHA-256, and its usage."""
    texts: defaultdict[int, list[str]] = defaultdict(list)
    usage = None
    lines = [line.removeprefix(b"data: ") for line in got.split(b"\n") if line.startswith(b"data: {")]
    for frame in map(orjson.loads, lines if events else [got]):
        response = frame.get("response", frame)
        for choice in response.get("choices") or ():
            piece = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
            texts[choice.get("index", 0)].append(piece.get("content") or "")
        for item in response.get("output") or ():
            texts[0] += [part.get("text", "") for part in item.get("content") or ()]
        usage = response.get("usage") or usage
    joined = ["".join(texts[index]) for index in sorted(texts)]
    return {"texts": joined, "sha256": hashlib.sha256("\0".join(joined).encode()).hexdigest(), "usage": usage}


def _append(file: Path, line: bytes) -> None:
    """Append a line at once, since several processes write the file. Raises OSError, ValueError if it is too long."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_size + len(line) > MAX_FILE_BYTES:
            raise ValueError(f"it has {MAX_FILE_BYTES} bytes; move it away")
        os.write(descriptor, line)
    finally:
        os.close(descriptor)
