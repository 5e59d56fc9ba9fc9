"""What the rows of a batch pass before they are sent: the quotas of the key that created it, and its share of a server.

A row waits until the quotas permit it, as long as the batch's window lasts; rows that are embedded together are one
request. The last of the requests that a key may have at a time is left to its other callers.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from inflight_client import InflightError

from inflight.batch.dispatch.backend import Backend, ServerLoad
from inflight.batch.job.rows import GenerateRequest, RowAnswer, RowRequest, answer_tokens
from inflight.common.atomic_files import write_atomic
from inflight.gateway.audit.line import AuditLine
from inflight.gateway.batches.row_audit import RowAudit
from inflight.gateway.key_file import ApiKey, read_key_file
from inflight.gateway.key_ring import Caller
from inflight.gateway.quotas import QuotaLedger, Reservation
from inflight.openai_api.errors import ApiError

_SHARE = "share"
_PROBE = "-short-"
"""In the ids of a job's own simple requests, by which it finds whether a server answers."""
_LOOK_SECONDS = 1.0
"""Between looks at the key file and at the share, and at quotas that are used up."""


class RowQuotas:
    """The quotas of a key, which may change while the batch runs; those of a key that was revoked still hold."""

    def __init__(self, key_file: Path, key_id: str, ledger: Path) -> None:
        """Open the ledger, which the gateway shares. Raises sqlite3.Error, OSError."""
        self._key_file, self._key_id = key_file, key_id
        self._ledger = QuotaLedger(ledger)
        self._key: ApiKey | None = None
        self._looked = -_LOOK_SECONDS
        self.policy: str | None = None
        """The SHA-256 of the key file without the keys' digests."""

    def reserve(self, requests: Sequence[RowRequest]) -> Reservation | None:
        """Reserve what the rows may use; None: the key has no quotas.

        Raises ApiError 429, sqlite3.Error, and InflightError `overloaded` while the key has never been read.
        """
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._looked = time.monotonic()
            with suppress(InflightError):
                file = read_key_file(self._key_file)
                found = [entry.key for entry in file.entries if entry.key.id == self._key_id] if file else []
                self._key, self.policy = found[0] if found else self._key, file.policy if file else None
        if self._key is None:
            raise InflightError(
                f"{self._key_file} does not have the API key that created the batch, or can't be read; restore it",
                "overloaded",
            )
        if not self._key.quotas.as_dict():
            return None
        key, most = self._key, self._key.quotas.max_concurrent
        if most is not None:
            key = replace(key, quotas=replace(key.quotas, max_concurrent=max(1, most - 1)))
        prompt = sum(map(_prompt_tokens, requests))
        answers = sum(each.n * each.max_tokens for each in requests if isinstance(each, GenerateRequest))
        return self._ledger.reserve(key, prompt, answers)

    @property
    def caller(self) -> Caller:
        """The key, as far as it was read."""
        return Caller() if self._key is None else Caller(self._key.tenant, key=self._key)

    def release(self, reservation: Reservation | None, tokens: int | None) -> None:
        if reservation is not None:
            with suppress(sqlite3.Error):  # it stays counted as reserved
                self._ledger.release(reservation, tokens)


def _prompt_tokens(request: RowRequest) -> int:
    """Estimate the tokens of a row."""
    return 1 + request.characters // 4


def _used_tokens(request: RowRequest, answer: RowAnswer | InflightError) -> int:
    """Return what a row used: at least its prompt, if its time ended while the server computed."""
    if isinstance(answer, InflightError):
        return _prompt_tokens(request) if answer.code == "deadline_exceeded" else 0
    return sum(answer_tokens(answer))


class GatedBackend:
    """A server that a batch shares: its rows wait at the gate, in order, and nothing else changes."""

    def __init__(self, backend: Backend, quotas: RowQuotas | None, batch: Path, audit: RowAudit | None = None) -> None:
        """`batch` is the directory of the batch, with its share of the server."""
        self.name = backend.name
        self._backend, self._quotas, self._batch, self._audit = backend, quotas, batch, audit
        self._build: str | None = None
        self._turn, self._freed = asyncio.Lock(), asyncio.Event()
        self._open = 0
        self._most: int | None = None

    async def send(self, requests: Sequence[RowRequest], request_id: str) -> Sequence[RowAnswer | InflightError]:
        if _PROBE in request_id:
            return await self._backend.send(requests, request_id)
        async with self._turn:
            reservation = await self._admitted(requests)
            self._open += 1
        tokens, began = None, time.monotonic()
        answers: Sequence[RowAnswer | InflightError] = ()
        try:
            answers = await self._backend.send(requests, request_id)
            tokens = sum(map(_used_tokens, requests, answers))
            return answers
        except InflightError as error:
            answers = [error] * len(requests)
            tokens = sum(_used_tokens(each, error) for each in requests) or None
            raise
        finally:
            self._open -= 1
            if self._quotas is not None:
                self._quotas.release(reservation, tokens)
            if self._audit is not None:
                line = AuditLine("batch_row", request_id=request_id, target=self.name, engine=self._build)
                line.keys_sha256 = self._quotas.policy if self._quotas else None
                self._audit.add(requests, answers, line, self._quotas.caller if self._quotas else Caller(), began)
            self._freed.set()

    async def _admitted(self, requests: Sequence[RowRequest]) -> Reservation | None:
        """Return what the rows hold, once they may be sent. Raises InflightError for those that never may."""
        while True:
            self._freed.clear()
            has_room = self._audit is None or self._audit.log.has_room
            if has_room and (self._most is None or self._open < self._most):
                try:
                    return None if self._quotas is None else self._quotas.reserve(requests)
                except ApiError as refusal:
                    if refusal.headers.get("x-should-retry") == "false":
                        raise InflightError(str(refusal), "row_invalid") from None
                except sqlite3.Error as error:  # the row is sent again
                    raise InflightError(f"the quotas of the API key can't be counted: {error}", "overloaded") from None
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._freed.wait()

    async def load(self) -> ServerLoad:
        load = await self._backend.load()
        share = read_share(self._batch)
        self._most = None if share >= 1 or not load.max_running else max(1, int(share * load.max_running))
        return load

    async def ready(self) -> bool:
        return await self._backend.ready()

    async def build(self) -> str:
        self._build = await self._backend.build()
        return self._build

    def prioritize(self, priority: int) -> bool:
        return self._backend.prioritize(priority)

    async def close(self) -> None:
        await self._backend.close()


def write_share(batch: Path, share: float) -> None:
    """Set the part of a server that a running batch may take, above 0 and up to 1. Raises OSError."""
    write_atomic(batch / _SHARE, str(share), mode=0o600)


def read_share(batch: Path) -> float:
    """Return the part of a server that a batch may take; 1 while none was set."""
    try:
        return float((batch / _SHARE).read_text())
    except (OSError, ValueError):
        return 1.0
