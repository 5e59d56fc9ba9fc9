"""What the rows of a batch pass when they are sent: the checks, the quotas of the key that created it, its share of a
server, and the audit log, since rows are no requests to the gateway.

A row waits until the quotas permit it, as long as the batch's window lasts; rows that are embedded together are one
request. The last of the requests that a key may have at a time is left to its other callers.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from inflight_client import AsyncClient, InflightError
from inflight_client.results import Generation

from inflight.batch.dispatch.backend import Backend, ServerLoad
from inflight.batch.job.rows import Completion, GenerateRequest, RowAnswer, RowRequest, answer_tokens
from inflight.common.atomic_files import write_atomic
from inflight.gateway.audit.line import AuditLine, prompt_of
from inflight.gateway.audit.log import AuditLog
from inflight.gateway.checks.checks import Checks
from inflight.gateway.checks.gate import checked_choice
from inflight.gateway.key_file import ApiKey, read_key_file
from inflight.gateway.metrics import GatewayMetrics
from inflight.gateway.outcome import Outcome
from inflight.gateway.quotas import QuotaLedger, Reservation
from inflight.gateway.routes_file import Routes
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
        self._policy: str | None = None

    def reserve(self, requests: Sequence[RowRequest]) -> Reservation | None:
        """Reserve what the rows may use; None: the key has no quotas.

        Raises ApiError 429, sqlite3.Error, and InflightError `overloaded` while the key has never been read.
        """
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._looked = time.monotonic()
            with suppress(InflightError):
                file = read_key_file(self._key_file)
                found = [entry.key for entry in file.entries if entry.key.id == self._key_id] if file else []
                self._key, self._policy = found[0] if found else self._key, file.policy if file else None
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

    def name_key(self, line: AuditLine) -> None:
        """Name the key, as far as it was read, in a line of the audit log."""
        line.keys_sha256 = self._policy
        if (key := self._key) is not None:
            line.key, line.key_id, line.tenant = key.name, key.id, key.tenant or None

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


@dataclass(frozen=True)
class RowAudit:
    """Where the rows have their lines. `model` is the one that they name, `prompts` whether the log has these."""

    log: AuditLog
    endpoint: str
    model: str | None
    prompts: bool

    def add(
        self, line: AuditLine, requests: Sequence[RowRequest], answers: Sequence[RowAnswer | InflightError]
    ) -> None:
        """Add a line for each row that was sent; without `answers`, its work was cancelled.

        `line` has what the rows have in common.
        """
        line.endpoint = self.endpoint
        for request, answer in zip_longest(requests, answers):
            line.model = request.model or self.model
            line.code, (line.input_tokens, line.output_tokens) = "cancelled", (0, 0)
            if isinstance(answer, InflightError):
                line.code = answer.code
            elif answer is not None:
                line.code, (line.input_tokens, line.output_tokens) = None, answer_tokens(answer)
            line.finish_reasons = _finish_reasons(answer)
            line.prompt = prompt_of(vars(request)) if self.prompts else None
            self.log.add(line.body())


def _finish_reasons(answer: RowAnswer | InflightError | None) -> tuple[str, ...]:
    if isinstance(answer, Generation):
        return (answer.finish_reason,)
    if isinstance(answer, Completion):
        return tuple(str(choice.get("finish_reason") or "stop") for choice in answer.choices)
    return ()


class RowChecks:
    """`routes` is the file with the checks, `model` the one that rows name, `classifiers` the servers of classifiers by
    the names of their models."""

    def __init__(self, routes: Path, model: str, classifiers: Mapping[str, Sequence[str]]) -> None:
        """Raises InflightError."""
        self._model, self._classifiers = model, classifiers
        self._clients: dict[str, AsyncClient] = {}
        counter = GatewayMetrics(lambda: True).checks
        self._checks = Checks(Routes(routes).checks, counter, self._client)

    def _client(self, model: str) -> AsyncClient:
        if not self._classifiers.get(model):
            raise InflightError(f"no server has the classifier {model}", "model_not_ready")
        address = random.choice(self._classifiers[model]).partition(",metrics=")[0]
        return self._clients.setdefault(address, AsyncClient(address))

    async def request(self, row: GenerateRequest, outcome: Outcome) -> GenerateRequest:
        """Return a row as checks leave it. Raises InflightError for one that is blocked, or gets no verdict."""
        name = "prompt" if isinstance(row.prompt, str) else "messages"
        kwargs, guide = row.options.get("chat_template_kwargs"), row.sampling.guide
        form: Any = None
        if guide is not None and guide.text:
            form = json.loads(guide.text) if guide.type == "json_schema" else guide.text
        sent = {name: row.prompt, "tools": list(row.tools.functions), "chat_template_kwargs": kwargs}
        sent["response_format"] = form
        try:
            left = await self._checks.before(sent, self._model, outcome)
        except ApiError as error:
            raise InflightError(str(error), error.code) from None
        if left is sent:
            return row
        options = row.options.copy()
        if kwargs is not None:
            options["chat_template_kwargs"] = left["chat_template_kwargs"]
        tools = replace(row.tools, functions=tuple(left["tools"]))
        row = replace(row, prompt=left[name], tools=tools, options=options, body=None)
        if guide is None or (new := left["response_format"]) == form:
            return row
        text = new if isinstance(new, str) else json.dumps(new, ensure_ascii=False)
        return replace(row, sampling=replace(row.sampling, guide=replace(guide, text=text)), schema=row.schema and new)

    async def answer(
        self, row: GenerateRequest, answer: RowAnswer | InflightError, outcome: Outcome
    ) -> RowAnswer | InflightError:
        """Return an answer as checks leave it."""
        gate = partial(self._checks.gate, self._model, outcome, row.sampling.guide)
        if isinstance(answer, Completion):
            return replace(answer, choices=tuple([await checked_choice(each, gate()) for each in answer.choices]))
        if not isinstance(answer, Generation):
            return answer
        choice = {"text": answer.text, "finish_reason": answer.finish_reason, "logprobs": True}
        left = await checked_choice(choice, gate())
        if not left["logprobs"]:
            answer = replace(answer, token_ids=None, log_probs=None, cumulative_log_prob=None)
        return replace(answer, text=left["text"], finish_reason=left["finish_reason"])


class GatedBackend:
    """A server that a batch shares: its rows wait at the gate, in order, and nothing else changes."""

    def __init__(
        self,
        backend: Backend,
        quotas: RowQuotas | None,
        batch: Path,
        audit: RowAudit | None = None,
        checks: RowChecks | None = None,
    ) -> None:
        """`batch` is the directory of the batch, with its share of the server."""
        self.name = backend.name
        self._backend, self._quotas, self._batch, self._audit = backend, quotas, batch, audit
        self._checks = checks
        self._build: str | None = None
        self._turn, self._freed = asyncio.Lock(), asyncio.Event()
        self._open = 0
        self._most: int | None = None

    async def send(self, requests: Sequence[RowRequest], request_id: str) -> Sequence[RowAnswer | InflightError]:
        if _PROBE in request_id:
            return await self._backend.send(requests, request_id)
        row, outcome = requests[0], Outcome()
        if self._checks is not None and isinstance(row, GenerateRequest):
            requests = [row := await self._checks.request(row, outcome)]
        async with self._turn:
            reservation = await self._admitted(requests)
            self._open += 1
        tokens, began = None, time.monotonic()
        answers: Sequence[RowAnswer | InflightError] = ()
        try:
            answers = await self._backend.send(requests, request_id)
            if self._checks is not None and isinstance(row, GenerateRequest):
                answers = [await self._checks.answer(row, answers[0], outcome)]
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
                line.checks = tuple(outcome.checks)
                line.seconds = round(time.monotonic() - began, 6)
                if self._quotas is not None:
                    self._quotas.name_key(line)
                self._audit.add(line, requests, answers)
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
