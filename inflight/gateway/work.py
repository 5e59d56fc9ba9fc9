"""Work at servers: it begins once there is room for it, within the quotas of the caller's key."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from inflight_client import InflightError
from inflight_client.errors import ERROR_CODES
from prometheus_client import Gauge

from inflight.gateway.admission_queue import Admission
from inflight.gateway.http import Request, cancel_on_disconnect
from inflight.gateway.key_ring import Caller
from inflight.gateway.outcome import Outcome
from inflight.gateway.quotas import KeyQuotas
from inflight.gateway.server_pool import Candidate
from inflight.gateway.servers import Target
from inflight.openai_api.errors import RETRY_SECONDS, ApiError

_OF_TARGETS = frozenset(("host_not_found", "permission_denied", "model_not_found", "unsupported_deployment"))
"""Codes of errors that another target may not have, besides those after which a request may be sent again."""


@dataclass(frozen=True)
class Held:
    """An attempt at a model that `load` loads first; its tokens are estimated without the model."""

    prompt_tokens: int
    answer_tokens: int
    load: Callable[[], Awaitable[Attempt]]


@dataclass(frozen=True)
class Attempt:
    """What an admitted request does at one target: `respond`. It takes `places` there.

    Its tokens are estimated: those that it sends, and the most that it may get. `label` names the target in the
    response.
    """

    target: Target
    label: str
    admission: Admission
    in_flight: Gauge
    places: int
    prompt_tokens: int
    answer_tokens: int
    respond: Callable[[Request], Awaitable[None]]
    priority: int = 0

    async def run(self, request: Request, caller: Caller, until: float, waiting: Gauge) -> None:
        """Respond once there is room."""
        waiting.inc()
        try:
            await self.admission.enter(
                *(self.places, caller.tenant, max(0.0, until - time.monotonic())),
                tokens=self.prompt_tokens + self.answer_tokens,
                weight=caller.weight,
                priority=self.priority,
            )
        finally:
            waiting.dec()
        outcome, target = request.outcome, self.target
        outcome.admitted, outcome.target = True, self.label
        outcome.engine, outcome.precision = target.build, target.precision
        request.response_headers["x-inflight-target"] = self.label
        request.answered = _Places(self, outcome, caller.tenant).give_back
        try:
            if not target.ready:
                raise ApiError(
                    "the server is not ready any more; send the request again later",
                    "model_not_ready",
                    status=503,
                    headers={"retry-after": str(RETRY_SECONDS)},
                )
            await self.respond(request)
        finally:
            request.answered()


async def run_work(
    attempts: Iterator[Attempt | Held],
    request: Request,
    caller: Caller,
    until: float,
    quotas: KeyQuotas,
    waiting: Gauge,
) -> bool:
    """Respond within the key's quotas at the first target, or at the second if that fails before anything was sent.

    The second is looked for once the first has failed. `until` is the moment of the monotonic clock by which the
    response must be complete. Returns False if the client leaves before the end.
    """
    first = next(attempts)

    async def run() -> None:
        begun: Attempt | None = None
        try:
            begun = await _loaded(first)
            await begun.run(request, caller, until, waiting)
        except (ApiError, InflightError) as error:
            known = ERROR_CODES.get(error.code)
            is_answered = request.started and begun is not None  # a wait for a load sends comments alone
            if is_answered or not ((known and known.retry) or error.code in _OF_TARGETS):
                raise
            try:
                after = next(attempts, None)
                second = None if after is None else await _loaded(after)
            except ApiError:  # it can't do what the first could, or is not ready
                second = None
            is_as_full = begun is not None and second is not None and second.admission is begun.admission
            if second is None or (is_as_full and not request.outcome.admitted):
                raise
            if request.outcome.target:
                request.outcome.failed.append(f"{request.outcome.target}: {error.code}")
            request.outcome.restart()
            await second.run(request, caller, until, waiting)

    with quotas.hold(caller.key, first.prompt_tokens, first.answer_tokens, request.outcome) as headers:
        request.response_headers |= headers
        done = await cancel_on_disconnect(request, run)
        request.outcome.left = not done  # before its tokens are counted
        return done


async def _loaded(attempt: Attempt | Held) -> Attempt:
    return await attempt.load() if isinstance(attempt, Held) else attempt


class _Places:
    """What an admitted request takes, until its answer is complete."""

    def __init__(self, attempt: Attempt, outcome: Outcome, tenant: str) -> None:
        self._attempt, self._outcome, self._tenant, self._began = attempt, outcome, tenant, time.monotonic()
        self._held = attempt.places
        attempt.target.in_flight += attempt.places
        attempt.in_flight.inc(attempt.places)

    def give_back(self) -> None:
        places, self._held = self._held, 0
        if places:
            self._attempt.target.in_flight -= places
            self._attempt.in_flight.dec(places)
            outcome = self._outcome
            finished = outcome.output_tokens > 0 or outcome.texts > 0
            used = max(outcome.input_tokens, outcome.prompt_tokens) + max(outcome.output_tokens, outcome.streamed)
            estimate = self._attempt.prompt_tokens + self._attempt.answer_tokens
            seconds = time.monotonic() - self._began if finished else None
            self._attempt.admission.leave(places, seconds, self._tenant, estimate - used, tokens=estimate)


def in_turn(first: Candidate, again: Callable[[], Sequence[Candidate]]) -> Iterator[Candidate]:
    """Yield the target that is asked first, and then the one that `again` finds once that has failed."""
    yield first
    yield from [each for each in again() if each.target is not first.target][:1]
