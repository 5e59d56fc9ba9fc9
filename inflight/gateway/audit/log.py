"""What a process writes the audit log with: lines wait in memory, and a thread appends those of half a second at once.

While they can't be written, they are kept. Once they take `MAX_HELD_BYTES`, new requests are refused, so that none is
answered without a line; a line then says how many.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from inflight_client import InflightError

from inflight.gateway.audit.chain import AuditOptions, Chain, event
from inflight.openai_api.errors import RETRY_SECONDS, ApiError

UNAVAILABLE = "audit_unavailable"
MAX_HELD_BYTES = 32 * 2**20
_FLUSH_SECONDS = 0.5
_MAX_LINES = 10_000
"""Appended at once, so that a file does not become much longer than a full one."""
logger = logging.getLogger("inflight.gateway")


class AuditLog:
    """The log of one process, whose lines one thread adds. `close` writes what is left."""

    def __init__(self, options: AuditOptions) -> None:
        self._chain = Chain(options)
        self._lines: deque[bytes] = deque()
        self._batch: list[bytes] = []
        """Taken from these by the thread, and kept until they are written."""
        self._taken = self._refused = 0
        self._written = self._reported = 0
        """Of what was taken and refused; only the thread changes these."""
        self._problem = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit-log", daemon=True)
        self._thread.start()

    @property
    def has_room(self) -> bool:
        return self._taken - self._written < MAX_HELD_BYTES

    def check_room(self) -> None:
        """Raise ApiError 503 while a request could have no line."""
        if not self.has_room:
            self._refused += 1
            raise ApiError(
                "the gateway can't write its audit log, so it answers no requests; send the request again later",
                UNAVAILABLE,
                status=503,
                headers={"retry-after": str(RETRY_SECONDS)},
            )

    def add(self, body: bytes) -> None:
        """Take the body of a line; it is written soon."""
        self._taken += len(body)
        self._lines.append(body)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        if lost := len(self._batch) + len(self._lines):
            logger.error("%d lines of the audit log are lost: %s", lost, self._problem)

    def _run(self) -> None:
        while not self._stopping.wait(_FLUSH_SECONDS):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        while self._batch or self._lines:
            while self._lines and len(self._batch) < _MAX_LINES:
                self._batch.append(self._lines.popleft())
            refused = self._refused - self._reported
            events = [event("refused", requests=refused)] if refused else []
            try:
                self._chain.append([*self._batch, *events])
            except (OSError, InflightError) as error:
                self._note(f"{error}")
                return
            self._note("")
            self._reported += refused
            self._written += sum(map(len, self._batch))
            self._batch = []

    def _note(self, problem: str) -> None:
        """Say once that lines can't be written, and once that they can be again."""
        if problem != self._problem:
            self._problem = problem
            if problem:
                logger.error("the audit log can't be written, and its lines are kept: %s", problem)
            else:
                logger.warning("the audit log can be written again")
