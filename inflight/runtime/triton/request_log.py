"""Writes a line of JSON for each ended answer: its metadata, finish reason, tokens and times; never its text."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, NamedTuple

from inflight.runtime.background_loop import BackgroundLoop
from inflight.runtime.messages import RequestMetadata, RequestTimings

PATH_VARIABLE = "INFLIGHT_REQUEST_LOG"
"""The environment variable that names the file; `inflight serve --request-log` sets it."""

_PERIOD_SECONDS = 0.2
_MAX_PENDING_LINES = 100_000
"""Limit of lines that wait for space on the disk; beyond it, the oldest are dropped."""
_MAX_ID_CHARACTERS = 256
_BATCH = 1000


class RequestLine(NamedTuple):
    """The log line of an answer. An error has a `code`; `timings` is None if the engine never got the request."""

    request_id: str
    metadata: RequestMetadata | None
    reason: str
    code: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    timings: RequestTimings | None = None
    ended_s: float = 0.0
    """Seconds since 1970."""

    def as_json(self) -> dict[str, Any]:
        origin = self.metadata or RequestMetadata()
        times = self.timings or RequestTimings(0)
        return {
            "time": datetime.fromtimestamp(self.ended_s, timezone.utc).isoformat(timespec="milliseconds"),
            "request_id": self.request_id[:_MAX_ID_CHARACTERS],
            "tenant": origin.tenant,
            "traceparent": origin.traceparent,
            "reason": self.reason,
            "code": self.code,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "queue_seconds": _seconds(times, times.admitted_ns),
            "first_token_seconds": _seconds(times, times.first_token_ns),
            "total_seconds": _seconds(times, times.end_ns),
            "client": origin.client,
        }


class RequestLog:
    """Appends to the file `path` in a separate thread, so that a slow disk delays no request.

    A file that was moved or removed is created again. If it can't be written, `report` is called once and lines wait.
    """

    def __init__(self, path: str, report: Callable[[str], None]) -> None:
        self._path = path
        self._lines: deque[RequestLine] = deque(maxlen=_MAX_PENDING_LINES)
        self._rest = b""
        """The rest of a partly written batch."""
        self._thread = BackgroundLoop("request-log", self._run, f"the request log {path} can't be written", report)
        self._thread.start()

    def add(self, line: RequestLine) -> None:
        """Queue the line of an ended answer."""
        self._lines.append(line._replace(ended_s=time.time()))

    def close(self) -> None:
        """Write the remaining lines."""
        self._thread.close()
        self._thread.attempt(self._write)

    def _run(self) -> None:
        self._thread.attempt(self._write)
        self._thread.pause(_PERIOD_SECONDS)

    def _write(self) -> None:
        """Write whole lines, in batches; lines that a full disk does not accept wait for the next call."""
        while self._rest or self._lines:
            # Opened each time, so that logs can be rotated by moving the file.
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                if not self._rest:
                    count = min(len(self._lines), _BATCH)
                    self._rest = b"".join(map(_encoded, [self._lines.popleft() for _ in range(count)]))
                while self._rest:
                    self._rest = self._rest[os.write(file, self._rest) :]
            finally:
                os.close(file)


def _encoded(line: RequestLine) -> bytes:
    return json.dumps(line.as_json(), separators=(",", ":")).encode() + b"\n"


def _seconds(times: RequestTimings, moment_ns: int) -> float | None:
    """Return the seconds from the arrival to that moment; None if it was not reached."""
    return round((moment_ns - times.arrival_ns) / 1e9, 6) if moment_ns else None
