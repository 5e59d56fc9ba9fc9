"""Work at servers: it begins once there is room for it, within the quotas of the caller's key."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from prometheus_client import Gauge

from inflight.gateway.admission_queue import Admission
from inflight.gateway.http import Request, cancel_on_disconnect
from inflight.gateway.key_ring import Caller
from inflight.gateway.outcome import Outcome
from inflight.gateway.quotas import KeyQuotas
from inflight.gateway.servers import Target


@dataclass(frozen=True)
class Work:
    """What an admitted request does: `respond`, at `target`. It takes `places` there.

    Its tokens are estimated: those that it sends, and the most that it may get. `timeout` is in seconds.
    """

    target: Target
    admission: Admission
    in_flight: Gauge
    places: int
    prompt_tokens: int
    answer_tokens: int
    timeout: float
    respond: Callable[[Request], Awaitable[None]]
    priority: int = 0

    async def run(self, request: Request, caller: Caller, quotas: KeyQuotas, waiting: Gauge) -> bool:
        """Respond once there is room, within the key's quotas; return False if the client leaves before the end."""
        outcome = request.outcome

        async def run() -> None:
            waiting.inc()
            try:
                await self.admission.enter(
                    *(self.places, caller.tenant, self.timeout),
                    tokens=self.prompt_tokens + self.answer_tokens,
                    weight=caller.weight,
                    priority=self.priority,
                )
            finally:
                waiting.dec()
            outcome.admitted = True
            request.answered = _Places(self, outcome, caller.tenant).give_back
            try:
                await self.respond(request)
            finally:
                request.answered()

        with quotas.hold(caller.key, self.prompt_tokens, self.answer_tokens, outcome) as headers:
            request.response_headers |= headers
            return await cancel_on_disconnect(request, run)


class _Places:
    """What an admitted request takes, until its answer is complete."""

    def __init__(self, work: Work, outcome: Outcome, tenant: str) -> None:
        self._work, self._outcome, self._tenant, self._began = work, outcome, tenant, time.monotonic()
        self._held = work.places
        work.target.in_flight += work.places
        work.in_flight.inc(work.places)

    def give_back(self) -> None:
        places, self._held = self._held, 0
        if places:
            self._work.target.in_flight -= places
            self._work.in_flight.dec(places)
            outcome = self._outcome
            finished = outcome.output_tokens > 0 or outcome.texts > 0
            used = max(outcome.input_tokens, outcome.prompt_tokens) + max(outcome.output_tokens, outcome.streamed)
            unused = self._work.prompt_tokens + self._work.answer_tokens - used
            seconds = time.monotonic() - self._began if finished else None
            self._work.admission.leave(places, seconds, self._tenant, unused)
