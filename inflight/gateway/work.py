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

    async def run(self, request: Request, caller: Caller, quotas: KeyQuotas, waiting: Gauge) -> bool:
        """Respond once there is room, within the key's quotas; return False if the client leaves before the end."""
        outcome = request.outcome

        async def run() -> None:
            waiting.inc()
            try:
                await self.admission.enter(self.places, caller.tenant, self.timeout)
            finally:
                waiting.dec()
            outcome.admitted = True
            request.answered = _Places(self, outcome).give_back
            try:
                await self.respond(request)
            finally:
                request.answered()

        with quotas.hold(caller.key, self.prompt_tokens, self.answer_tokens, outcome) as headers:
            request.response_headers |= headers
            return await cancel_on_disconnect(request, run)


class _Places:
    """What an admitted request takes, until its answer is complete."""

    def __init__(self, work: Work, outcome: Outcome) -> None:
        self._work, self._outcome, self._began = work, outcome, time.monotonic()
        self._held = work.places
        work.target.in_flight += work.places
        work.in_flight.inc(work.places)

    def give_back(self) -> None:
        places, self._held = self._held, 0
        if places:
            self._work.target.in_flight -= places
            self._work.in_flight.dec(places)
            finished = self._outcome.output_tokens > 0 or self._outcome.texts > 0
            self._work.admission.leave(places, time.monotonic() - self._began if finished else None)
