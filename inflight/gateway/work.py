"""Work at servers: it begins once there is room for it, within the quotas of the caller's key."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from inflight_client import InflightError
from inflight_client.errors import ERROR_CODES
from prometheus_client import Gauge

from inflight.gateway.admission_queue import Admission
from inflight.gateway.http import Request, cancel_on_disconnect
from inflight.gateway.key_ring import Caller
from inflight.gateway.outcome import Outcome
from inflight.gateway.quotas import KeyQuotas
from inflight.gateway.servers import Target
from inflight.openai_api.errors import ApiError

_OF_TARGETS = frozenset(("host_not_found", "permission_denied", "model_not_found", "unsupported_deployment"))
"""Codes of errors that another target may not have, besides those after which a request may be sent again."""


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
        request.outcome.admitted = True
        request.response_headers["x-inflight-target"] = self.label
        request.answered = _Places(self, request.outcome, caller.tenant).give_back
        try:
            await self.respond(request)
        finally:
            request.answered()


async def run_work(
    attempts: Iterator[Attempt], request: Request, caller: Caller, until: float, quotas: KeyQuotas, waiting: Gauge
) -> bool:
    """Respond within the key's quotas at the first target, or at the second if that fails before anything was sent.

    `until` is the moment of the monotonic clock by which the response must be complete. Returns False if the client
    leaves before the end.
    """
    first = next(attempts)

    async def run() -> None:
        try:
            await first.run(request, caller, until, waiting)
        except (ApiError, InflightError) as error:
            known = ERROR_CODES.get(error.code)
            if request.started or not ((known and known.retry) or error.code in _OF_TARGETS):
                raise
            try:
                second = next(attempts, None)
            except ApiError:  # it can't do what the first could
                second = None
            if second is None or (second.admission is first.admission and not request.outcome.admitted):
                raise
            request.outcome.restart()
            await second.run(request, caller, until, waiting)

    with quotas.hold(caller.key, first.prompt_tokens, first.answer_tokens, request.outcome) as headers:
        request.response_headers |= headers
        done = await cancel_on_disconnect(request, run)
        request.outcome.left = not done  # before its tokens are counted
        return done


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
            unused = self._attempt.prompt_tokens + self._attempt.answer_tokens - used
            seconds = time.monotonic() - self._began if finished else None
            self._attempt.admission.leave(places, seconds, self._tenant, unused)
