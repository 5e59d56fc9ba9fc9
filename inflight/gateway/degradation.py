"""What a request of a route gets while rungs of the route's ladder hold (see ladder.py).

A request gets what it asks for if its tenant has no more than its share of the places, since others are the cause then.
So does one that opts out, by its header `x-inflight-degrade: never` or by its key: it waits, or is refused, as without
a ladder. The header `x-inflight-degraded` of a response says what was done, and which rungs were skipped and why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from inflight_client.call import TokenIds

from inflight.gateway.admission_queue import Admission
from inflight.gateway.http import Request
from inflight.gateway.key_ring import Caller
from inflight.gateway.ladder import Capacity, Ladder, LadderSpec, Rung
from inflight.gateway.metrics import GatewayMetrics
from inflight.gateway.routes_file import Route, TargetSpec
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

    def __init__(self, pool: ServerPool, metrics: GatewayMetrics, admission: Callable[..., Admission]) -> None:
        """`admission` returns that of a model, and of an address if a target has one."""
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
            if self._ladders.pop(parsed.model, None) is not None:
                self._metrics.rung.labels(parsed.model).set(0)
            return parsed, targets
        rungs = self._rungs(parsed, targets, route, route.ladder)
        # A response that has begun, with comments while its model was loaded, can't say what was done.
        opted_out = request.started or not may_degrade(request, caller)
        within_share = self._admission(_model(targets[0]), targets[0].address).within_share
        if not rungs or opted_out or within_share(caller.tenant, parsed.choices):
            return parsed, targets
        return self._descend(rungs, parsed, targets, request, caller)

    def _descend(
        self, rungs: Sequence[Rung], parsed: GenerationRequest, targets: Targets, request: Request, caller: Caller
    ) -> tuple[GenerationRequest, Targets]:
        route, notes = parsed.model, []
        for rung in rungs:
            why = ""
            if rung.refuse:
                request.response_headers[HEADER] = request.outcome.rung = rung.name
                self._metrics.degraded.labels(route, rung.name).inc()
                admission = self._admission(_model(targets[0]), targets[0].address)
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
            request.response_headers[HEADER] = request.outcome.rung = ", ".join(notes)
        return parsed, targets

    def _rungs(self, parsed: GenerationRequest, targets: Targets, route: Route, spec: LadderSpec) -> Sequence[Rung]:
        """Return the rungs that hold, by the longest wait of where the route's requests go now."""
        name = parsed.model
        ladder = self._ladders.get(name)
        if ladder is None or ladder.spec != spec:
            gauge = self._metrics.rung.labels(name)
            gauge.set(0)
            ladder = self._ladders[name] = Ladder(spec, name, gauge.set)
        weighty = [each for each in route.targets if each.weight]
        specs: list[TargetSpec] = [*weighty, *filter(None, (route.canary,)), *route.tiers.values()]
        ready = [each for target in specs for each in self._pool.at("generate", target.model, target.server)]
        own = self._admissions(ready or targets)

        def used(rungs: Sequence[Rung]) -> Sequence[Admission]:
            smaller = [each for rung in rungs if rung.model for each in self._pool.at("generate", rung.model, None)]
            return self._admissions(smaller) or own

        def capacity(level: int) -> Capacity:
            taken = used(spec.rungs[:level])
            return sum(each.rate for each in taken), sum(each.limit for each in taken)

        wait = max(each.predicted_wait() for each in (*own, *used(ladder.rungs)))
        ladder.observe(wait, time.monotonic(), parsed.choices, capacity)
        return ladder.rungs

    def _admissions(self, targets: Targets) -> Sequence[Admission]:
        return list(dict.fromkeys(self._admission(_model(each), each.address) for each in targets))

    def _smaller(self, model: str, parsed: GenerationRequest, request: Request) -> tuple[Targets, str]:
        """Return the servers of a model for a request, or why it does not fit them: the field, or `unavailable`."""
        try:
            found = self._pool.candidates("generate", model, None, request.request_id)
        except ApiError:
            return (), "unavailable"
        fitting = [each for each in found if not _misfit(each, parsed)]
        return (fitting[:2], "") if fitting else ((), _misfit(found[0], parsed))


def may_degrade(request: Request, caller: Caller) -> bool:
    """Return whether a request has not opted out."""
    return request.headers.get(CHOICE) != "never" and caller.degrades


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


def _most_tokens(parsed: GenerationRequest) -> int:
    """Return more tokens than the prompts have in all likelihood, since a misfit would be an error."""
    is_ascii = all(isinstance(each, TokenIds) or str(each).isascii() for each in parsed.prompts)
    return parsed.estimated_tokens + (0 if is_ascii else parsed.characters)


def _misfit(candidate: Candidate, parsed: GenerationRequest) -> str:
    """Return the field of a request that a target has no room for, or can't do; "" if there is none."""
    server = candidate.target
    if not isinstance(server, UpstreamServer) or server.deployment is None:
        return "unavailable"
    if server.max_seq_len is not None and _most_tokens(parsed) + (parsed.max_tokens or 1) > server.max_seq_len:
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
