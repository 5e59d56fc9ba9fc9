"""What a request of a route gets while rungs of the route's ladder hold (see ladder.py).

A request gets what it asks for if its tenant has no more than its share of the places, since others are the cause then.
So does one that opts out, by its header `x-inflight-degrade: never` or by its key: it waits, or is refused, as without
a ladder. The header `x-inflight-degraded` of a response says what was done, and which rungs were skipped and why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from inflight.gateway.admission_queue import Admission
from inflight.gateway.http import Request
from inflight.gateway.key_ring import Caller
from inflight.gateway.ladder import Ladder, LadderSpec, Rung
from inflight.gateway.metrics import GatewayMetrics
from inflight.gateway.server_pool import Candidate, ServerPool
from inflight.gateway.servers import UpstreamServer
from inflight.openai_api.errors import ApiError
from inflight.openai_api.request import GenerationRequest

HEADER = "x-inflight-degraded"
CHOICE = "x-inflight-degrade"
_CHOICES = ("allow", "never")
Targets = Sequence[Candidate]


class Degradation:
    """Applies the ladders of all routes, for one process."""

    def __init__(self, pool: ServerPool, metrics: GatewayMetrics, admission: Callable[[str], Admission]) -> None:
        """`admission` returns that of a model."""
        self._pool, self._metrics, self._admission = pool, metrics, admission
        self._ladders: dict[str, Ladder] = {}

    def apply(
        self, parsed: GenerationRequest, targets: Targets, request: Request, caller: Caller
    ) -> tuple[GenerationRequest, Targets]:
        """Return what is left of a request, and its targets. Raises ApiError 429 on the rung `refuse`."""
        choice = request.headers.get(CHOICE, "allow")
        if choice not in _CHOICES:
            raise ApiError(f"{CHOICE} is {choice[:20]!r}; it must be never, or left out", "invalid_parameter", CHOICE)
        route = self._pool.routes.current.get(parsed.model)
        if route is None or route.ladder is None:
            return parsed, targets
        admissions = [self._admission(_model(each)) for each in targets]
        rungs = self._rungs(parsed, route.ladder, admissions)
        opted_out = choice == "never" or not caller.degrades
        if not rungs or opted_out or admissions[0].within_share(caller.tenant, parsed.choices):
            return parsed, targets
        return self._descend(rungs, parsed, targets, request, caller)

    def _descend(
        self, rungs: Sequence[Rung], parsed: GenerationRequest, targets: Targets, request: Request, caller: Caller
    ) -> tuple[GenerationRequest, Targets]:
        route, notes = parsed.model, []
        for rung in rungs:
            why = ""
            if rung.refuse:
                request.response_headers[HEADER] = rung.name
                self._metrics.degraded.labels(route, rung.name).inc()
                admission = self._admission(_model(targets[0]))
                raise admission.refusal(parsed.choices, caller.tenant)
            if rung.model:
                others, why = self._smaller(rung.model, parsed, request)
                targets = others or targets
            elif rung.max_tokens:
                if parsed.max_tokens is not None and parsed.max_tokens <= rung.max_tokens:
                    continue
                why = _uncuttable(parsed, rung.max_tokens)
                parsed = parsed if why else replace(parsed, max_tokens=rung.max_tokens)
            notes.append(f"{rung.name};skipped={why}" if why else rung.name)
            if not why:
                self._metrics.degraded.labels(route, rung.name).inc()
        if notes:
            request.response_headers[HEADER] = ", ".join(notes)
        return parsed, targets

    def _rungs(self, parsed: GenerationRequest, spec: LadderSpec, admissions: Sequence[Admission]) -> Sequence[Rung]:
        """Return the rungs that hold, by the longest wait of where the route's requests go now."""
        route = parsed.model
        ladder = self._ladders.get(route)
        if ladder is None or ladder.spec != spec:
            gauge = self._metrics.rung.labels(route)
            gauge.set(0)
            ladder = self._ladders[route] = Ladder(spec, route, gauge.set)
        now_at = [*admissions, *(self._admission(rung.model) for rung in ladder.rungs if rung.model)]
        slowest = max(now_at, key=lambda each: each.predicted_wait())
        ladder.observe(slowest.predicted_wait(), time.monotonic(), parsed.choices, slowest.rate)
        return ladder.rungs

    def _smaller(self, model: str, parsed: GenerationRequest, request: Request) -> tuple[Targets, str]:
        """Return the servers of a model for a request, or why it does not fit them: the field, or `unavailable`."""
        try:
            found = self._pool.candidates("generate", model, None, request.request_id)
        except ApiError:
            return (), "unavailable"
        fitting = [each for each in found if not _misfit(each, parsed)]
        return (fitting[:2], "") if fitting else ((), _misfit(found[0], parsed))


def _model(candidate: Candidate) -> str:
    """Return the model whose admission a request at a target passes."""
    return candidate.target.model if isinstance(candidate.target, UpstreamServer) else candidate.model


def _uncuttable(parsed: GenerationRequest, most: int) -> str:
    """Return the field for which an answer of fewer tokens would be useless; "" if there is none."""
    if parsed.sampling.guide is not None:
        return "response_format"
    if parsed.tools.active:
        return "tools"
    return "min_tokens" if (parsed.sampling.min_tokens or 0) > most else ""


def _misfit(candidate: Candidate, parsed: GenerationRequest) -> str:
    """Return the field of a request that a target has no room for, or can't do; "" if there is none."""
    server = candidate.target
    if not isinstance(server, UpstreamServer) or server.deployment is None:
        return "unavailable"
    tokens = parsed.estimated_tokens + (parsed.max_tokens or 1)
    if server.max_seq_len is not None and tokens > server.max_seq_len:
        return "context"
    if parsed.chat and server.served.get("chat_template") is False:
        return "messages"
    needed = {
        "response_format": (parsed.sampling.guide is not None, "guided_decoding_guide"),
        "top_logprobs": (parsed.top_logprobs > 0, "num_top_log_probs"),
        "prompt_logprobs": (parsed.scores_prompt, "return_prompt_log_probs"),
    }
    inputs = server.deployment.inputs
    return next((name for name, (asked, tensor) in needed.items() if asked and tensor not in inputs), "")
