"""Compares the counts of the whole run on the client with those of the server."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadtests.analysis.columns import UNKNOWN, Columns, Flags
from loadtests.analysis.server.counters import ServerCounters
from loadtests.analysis.server.figures import ENDED_REQUESTS
from loadtests.analysis.summary import CountComparison
from loadtests.plan import LoadPlan
from loadtests.record import RequestOutcome

_NEVER_ARRIVED_CODES = (
    *("server_unreachable", "host_not_found", "connection_closed", "unsupported_deployment", "model_not_found"),
    *("permission_denied", "client_closed", "client_forked", "no_chat_template"),
)
"""Error codes of requests that never reached a model of the server."""

_ARRIVED_CODES = (
    *("empty_prompt", "prompt_too_long", "invalid_text", "invalid_messages", "invalid_token_ids"),
    *("overloaded", "engine_died", "engine_restarting"),
)
"""Error codes that only a model of the server gives. All others may come from either side."""

_BROKEN_OFF_CODES = ("server_gone", "answer_damaged")
_REASONS = {"stop": "STOP", "length": "LENGTH", "stop_word": "STOP_WORD"}
_ABANDONED_NOTE = "a client that disconnected or timed out may have missed an end that the server had already sent"


def reconcile(counters: ServerCounters, columns: Columns, plan: LoadPlan) -> tuple[CountComparison, ...]:
    """Compare the counts; empty if the server was not read before and after the run, or was restarted during it.
    `ServerSide.notes` says so."""
    whole = counters.whole_run()
    if whole is None:
        return ()
    ends = _RequestEnds(columns)
    comparisons = [_requests(whole, ends), *_by_end(whole, ends, plan), *_tokens(whole, ends, plan)]
    return tuple(match for match in comparisons if match)


@dataclass(frozen=True)
class _RequestEnds:
    """The requests of a run by how the server counts them: flags, one per request."""

    columns: Columns

    @cached_property
    def responded(self) -> Flags:
        """A response arrived, so the server had the request."""
        return self.columns.responses > 0

    @cached_property
    def never_arrived(self) -> Flags:
        return self._code(*_NEVER_ARRIVED_CODES) & ~self.responded

    @cached_property
    def abandoned(self) -> Flags:
        """The client disconnected before it saw how the request ended."""
        gone = (RequestOutcome.CANCELLED, RequestOutcome.UNFINISHED, RequestOutcome.TIMED_OUT)
        return self.columns.with_outcome(*gone) | self._code(*_BROKEN_OFF_CODES)

    @cached_property
    def uncertain(self) -> Flags:
        """The request may never have reached a model."""
        sure = self.columns.with_outcome(RequestOutcome.COMPLETED) | self._code(*_ARRIVED_CODES) | self.responded
        return ~sure & ~self.never_arrived

    @cached_property
    def engine_died(self) -> Flags:
        return self._code("engine_died")

    @cached_property
    def refused(self) -> Flags:
        """The request was answered with an error before it started."""
        failed = self.columns.with_outcome(RequestOutcome.REJECTED, RequestOutcome.FAILED)
        return failed & ~self.never_arrived & ~self.abandoned & ~self.engine_died

    def completed(self, *reasons: str) -> Flags:
        whole = self.columns.with_outcome(RequestOutcome.COMPLETED)
        return whole & self.columns.text_is(self.columns.finish, *reasons) if reasons else whole

    def _code(self, *codes: str) -> Flags:
        return self.columns.text_is(self.columns.code, *codes)


def _requests(server: ServerCounters, ends: _RequestEnds) -> CountComparison | None:
    """Compare all requests: each runs once through preprocessing, also those that are rejected there."""
    count = _arrived_count(server)
    if count is None:
        return None
    uncertain = _count(ends.uncertain)
    note = "all requests that reached the server, counted by preprocessing"
    if absent := _count(ends.never_arrived):
        note += f"; {absent} never reached it"
    if uncertain:
        note += f"; for {uncertain} that ended before any response this is unknown"
    return CountComparison("requests", _count(~ends.never_arrived), count, note, allowed_fewer=uncertain)


def _by_end(server: ServerCounters, ends: _RequestEnds, plan: LoadPlan) -> list[CountComparison | None]:
    left = _count(ends.abandoned)
    reasons = server.by_label(ENDED_REQUESTS, "reason")
    if not reasons:
        return [_ensemble(server, ends, plan, left)]
    ended = {reason: round(number) for reason, number in reasons.items()}
    late = _count(ends.columns.with_outcome(RequestOutcome.TIMED_OUT))
    gone = _count(ends.columns.with_outcome(RequestOutcome.CANCELLED, RequestOutcome.UNFINISHED))
    left_note = "requests whose client disconnected; those already complete, or not yet received, are counted elsewhere"
    late_note = "requests past their deadline; counted by whichever clock expired first, the client's or the server's"
    died_note = "requests that were running when the engine died"
    counts: list[tuple[str, int, str, str, int, int]] = [
        *(
            (name, _count(ends.completed(name)), reason, f"completed with {reason}; {_ABANDONED_NOTE}", 0, left)
            for name, reason in _REASONS.items()
        ),
        ("cancelled", gone, "CANCELED", left_note, gone, left - gone),
        ("timed out", late, "DEADLINE", late_note, late, left - late),
        ("engine died", _count(ends.engine_died), "ERROR", died_note, 0, left),
    ]
    return [
        *(
            CountComparison(name, client, ended.get(reason, 0), note, fewer, more)
            for name, client, reason, note, fewer, more in counts
        ),
        _refused(server, ends, ended),
    ]


def _refused(server: ServerCounters, ends: _RequestEnds, ended: dict[str, int]) -> CountComparison | None:
    arrived = _arrived_count(server)
    if arrived is None:
        return None
    before = arrived - sum(ended.values())
    unseen = _count(ends.abandoned & ~ends.responded)
    note = f"by the engine {ended.get('REJECTED', 0)}, between preprocessing and engine {before}"
    if unseen:
        note += f"; the latter may include {unseen} whose client disconnected before any response"
    return CountComparison(
        *("refused", _count(ends.refused), before + ended.get("REJECTED", 0), note),
        allowed_fewer=_count(ends.refused & ends.uncertain),
        allowed_more=unseen,
    )


def _ensemble(server: ServerCounters, ends: _RequestEnds, plan: LoadPlan, left: int) -> CountComparison | None:
    """Compare with the ensemble's counts if the engine counts no ends: success means answered to the end."""
    model = plan.model or "ensemble"
    count = server.increase("nv_inference_request_success", model=model)
    if count is None or model != "ensemble":
        return None
    return CountComparison(
        "completed", _count(ends.completed()), round(count), f"as counted by the ensemble; {_ABANDONED_NOTE}", 0, left
    )


def _tokens(server: ServerCounters, ends: _RequestEnds, plan: LoadPlan) -> list[CountComparison | None]:
    columns, left = ends.columns, ends.abandoned & ~ends.never_arrived
    tells_ends = server.increase(ENDED_REQUESTS) is not None
    unknown = _count((columns.input_tokens == UNKNOWN) & (left | ends.completed()))
    seen = columns.received_tokens
    comparisons: list[CountComparison | None] = []
    if (count := _token_count(server, plan, "input")) is not None:
        note = "tokens of prompts"
        if unknown:
            note += f"; for {unknown} requests the client does not know the number"
        input_tokens = int(columns.input_tokens[columns.input_tokens != UNKNOWN].sum())
        comparisons.append(CountComparison("input tokens", input_tokens, count, note, 0, None if unknown else 0))
    if (count := _token_count(server, plan, "output")) is not None:
        unseen = int(np.maximum(columns.max_tokens - seen, 0)[left].sum())
        # The engine does not count tokens of requests that were running when it died; TensorRT-LLM does not promise to
        # count those of cancelled ones.
        uncounted = int(seen[ends.engine_died if tells_ends else ends.engine_died | left].sum())
        note = "tokens of answers"
        if unseen:
            note += f"; for {_count(left)} clients that disconnected, the server may have made up to {unseen} more"
        if uncounted:
            note += f"; the server may not count {uncounted} of incomplete answers"
        comparisons.append(CountComparison("output tokens", int(seen.sum()), count, note, uncounted, unseen))
    return comparisons


def _token_count(server: ServerCounters, plan: LoadPlan, kind: str) -> int | None:
    """Return the count of the plan's own tenant if the server distinguishes tenants, so that other tenants do not
    count."""
    own = server.increase("inflight_tenant_tokens_total", tenant=plan.tenant, kind=kind) if plan.tenant else None
    total = server.increase(f"nv_llm_{kind}_token_len_sum") if own is None else own
    return None if total is None else round(total)


def _arrived_count(server: ServerCounters) -> int | None:
    served = server.increase("nv_inference_request_success", model="preprocessing")
    failed = server.increase("nv_inference_request_failure", model="preprocessing")
    return None if served is None else round(served + (failed or 0))


def _count(flags: Flags) -> int:
    return int(flags.sum())
