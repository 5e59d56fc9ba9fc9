"""Answers of opted-in requests: from the store, together with an identical request that is open, or computed."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from inflight.gateway.degradation import may_degrade
from inflight.gateway.http import DisconnectedError, Request, Response, cancel_on_disconnect
from inflight.gateway.key_ring import Caller
from inflight.gateway.quotas import KeyQuotas
from inflight.gateway.response_cache.store import FILE, Entry, Generation, ResponseStore
from inflight.gateway.servers import Target
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import ApiError
from inflight.openai_api.frames import KEEP_ALIVE

HEADER = "x-inflight-cache"
MAX_WIRE_BYTES = 2**20
"""Of an answer that is stored."""
_REMARKS = ("x-inflight-tool-call-parser", "x-inflight-degraded")
"""Headers of an answer that is not quite what was asked for; it goes only to those who ask at the same time."""
_WHOLE = frozenset(("stop", "length", "tool_calls"))
Compute = Callable[[Request], Awaitable[None]]


class CachedAnswers:
    """The response cache of one process. Those of a gateway share the store, not what is being computed."""

    def __init__(self, settings: GatewaySettings, quotas: KeyQuotas) -> None:
        self._store = ResponseStore(settings.state_path / FILE, settings.cache_max_bytes, settings.cache_max_age)
        self._quotas = quotas
        self._computing: dict[tuple[bytes, Generation | None, bool], _Computing] = {}
        self.close = self._store.close

    async def answer(
        self,
        request: Request,
        caller: Caller,
        find_key: Callable[[], bytes | None],
        target: Target,
        until: float,
        compute: Compute,
    ) -> None:
        """Answer a request whose key `find_key` returns; None: its answer is no function of it.

        `compute` answers the request that it is given. `until` is a moment of the monotonic clock. Raises what
        `compute` raises, ApiError and DisconnectedError.
        """
        max_age = _max_age(request.headers.get("cache-control", ""), self._store.max_age)
        if max_age is None or (key := find_key()) is None:
            _note(request, "off")
            await compute(request)
            return
        build = target.build
        entry, generation = await self._store.find(key, max_age)
        place = (key, generation, may_degrade(request, caller))
        other = self._computing.get(place) if max_age else None
        if entry is not None:
            with self._uncomputed(request, caller, target):
                request.outcome.finish_reasons = dict(enumerate(entry.finish_reasons))
                if entry.wire.startswith(b"{"):
                    await request.respond(Response(entry.wire))
                else:
                    await request.start_stream()
                    await request.end(entry.wire)
            return
        if other is not None and await self._follow(other, request, caller, target, until):
            return
        _note(request, "miss")
        own = _Computing(request, compute)
        self._computing.setdefault(place, own)
        try:
            await own.run()
        finally:
            if generation is not None and (whole := own.entry(build)) is not None and find_key() == key:
                await self._store.keep(key, whole, generation)
            if self._computing.get(place) is own:
                del self._computing[place]

    @contextmanager
    def _uncomputed(self, request: Request, caller: Caller, target: Target) -> Iterator[None]:
        """Count a request without tokens, if it gets an answer that is not computed for it."""
        outcome = request.outcome
        with self._quotas.hold(caller.key, 0, 0, outcome) as headers:
            request.response_headers |= headers
            _note(request, "hit")
            outcome.engine, outcome.precision = target.build, target.precision
            try:
                yield
            finally:
                outcome.admitted = request.started

    async def _follow(self, other: _Computing, request: Request, caller: Caller, target: Target, until: float) -> bool:
        """Answer with what is being computed; return False if nothing of it came, in time or at all."""
        with self._uncomputed(request, caller, target):
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    await other.send_to(request)
            except TimeoutError:
                if request.started:
                    raise ApiError("the answer is not complete; set a later deadline", "deadline_exceeded") from None
                return False
            if request.started:
                request.outcome.finish_reasons = other.request.outcome.finish_reasons
                request.outcome.error = other.request.outcome.error
                other.check()
            return request.started


class _Computing:
    """An answer that is computed for all who read it. It is cancelled once no client does."""

    def __init__(self, request: Request, compute: Compute) -> None:
        """`request` is the first one that asks for it, which waits in `run`."""
        self.request = request
        self._inner = inner = request.detached(self._take, request.request_id)
        inner.headers, inner.response_headers = request.headers, request.response_headers
        inner.outcome, inner.span = request.outcome, request.span
        self._body, self._ended, self._readers = bytearray(), False, 0
        self._news = asyncio.Event()
        self._task = asyncio.ensure_future(compute(inner))
        self._task.add_done_callback(lambda task: self._tell())

    async def run(self) -> None:
        """Send it to the first request. If its client leaves, go on for the others."""
        stays = False
        try:
            with suppress(DisconnectedError):
                await self.send_to(self.request)
                stays = True
            await asyncio.wait((self._task,))
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if not stays:
            raise DisconnectedError
        self._task.result()

    def check(self) -> None:
        """Raise what ended it before its end."""
        if not self._ended:
            error = None if self._task.cancelled() else self._task.exception()
            raise error or ApiError("the answer was not finished; send the request again", "cancelled")

    async def send_to(self, request: Request) -> None:
        """Send what there is, and what comes, until it ends. Raises DisconnectedError if the client leaves."""
        self._readers += 1
        try:
            if not await cancel_on_disconnect(request, partial(self._write_to, request)):
                raise DisconnectedError
        finally:
            self._readers -= 1
            if not self._readers and not self._ended and not self._task.done():
                self.request.outcome.left = True  # before its tokens are counted
                self._task.cancel()

    async def _write_to(self, request: Request) -> None:
        sent = 0
        while True:
            news, ended, streams = self._news, self._ended, self._inner.has_events
            part = bytes(self._body[sent:]) if streams or ended else b""
            sent += len(part)
            if part and not request.started:
                request.response_headers |= self._remarks
                if streams:
                    await request.start_stream()
            if ended:
                await (request.end(part) if streams else request.respond(Response(part)))
                return
            if part:
                await request.write(part)
            elif self._task.done():
                return
            else:
                await news.wait()

    def entry(self, build: str | None) -> Entry | None:
        """Return what may be stored: a whole answer, as asked for, of the engine that the key names."""
        outcome = self.request.outcome
        reasons = tuple(reason for _, reason in sorted(outcome.finish_reasons.items()))
        is_whole = self._ended and self._inner.status == 200 and not outcome.error and _WHOLE.issuperset(reasons)
        is_as_asked = not self._remarks and not outcome.failed and outcome.engine == build
        is_checked = not any(each.endswith("=failed") for each in outcome.checks)
        if not (reasons and is_whole and is_as_asked and is_checked) or len(self._body) > MAX_WIRE_BYTES:
            return None
        return Entry(bytes(self._body).replace(KEEP_ALIVE, b""), reasons)

    @property
    def _remarks(self) -> dict[str, str]:
        return {name: value for name, value in self.request.response_headers.items() if name in _REMARKS}

    async def _take(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            self._body += message["body"]
            self._ended = not message.get("more_body", False)
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _note(request: Request, result: str) -> None:
    request.response_headers[HEADER] = request.outcome.cache = result


def _max_age(header: str, most: float) -> float | None:
    """Return how old a stored answer may be, in seconds; None: it must not be stored either."""
    pairs = (each.partition("=") for each in header.lower().split(","))
    directives = {name.strip(): value.strip(' "') for name, _, value in pairs}
    if "no-store" in directives:
        return None
    age = "0" if "no-cache" in directives else directives.get("max-age")
    return most if age is None else min(most, int(age[:9])) if re.fullmatch("[0-9]+", age) else 0
