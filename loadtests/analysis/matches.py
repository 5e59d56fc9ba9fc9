"""Counts of the whole run, as the client has them and as the server has them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadtests.analysis.columns import UNKNOWN, Columns, Flags
from loadtests.analysis.server_counters import ServerCounters
from loadtests.analysis.server_side import ENDS
from loadtests.analysis.summary import Match
from loadtests.plan import Plan
from loadtests.record import Outcome

_NEVER_THERE = (
    *("server_unreachable", "host_not_found", "hung_up", "unsupported_deployment", "model_not_found"),
    *("permission_denied", "client_closed", "client_forked", "no_chat_template"),
)
"""Codes of requests of which no model of the server ever knew."""

_SURELY_THERE = (
    *("empty_prompt", "prompt_too_long", "invalid_text", "invalid_messages", "invalid_token_ids"),
    *("overloaded", "engine_died", "engine_restarting"),
)
"""Codes that a model of the server gave. All others may have come from either side."""

_LOST = ("server_gone", "answer_damaged")
_REASONS = {"stop": "STOP", "length": "LENGTH", "stop_word": "STOP_WORD"}
_LEFT = "a client that left, or was too late, may have missed an end that the server had made already"


def matches(run: ServerCounters, columns: Columns, plan: Plan) -> tuple[Match, ...]:
    """Empty where the server was not read before and after the run, or was started again in the middle of it;
    `ServerSide.notes` say so."""
    samples = run.samples
    if len(samples) < 2 or samples[0].moment != "before" or samples[-1].moment != "after" or run.restarts:
        return ()
    ends = _Ends(columns)
    whole = ServerCounters(())
    whole.samples = [samples[0], samples[-1]]
    found = [_requests(whole, ends), *_by_end(whole, ends, plan), *_tokens(whole, ends, plan)]
    return tuple(match for match in found if match)


@dataclass(frozen=True)
class _Ends:
    """The requests of a run by how they stand to the server's counts: flags, one a request."""

    columns: Columns

    @cached_property
    def seen(self) -> Flags:
        """There came a response, so the server had it."""
        return self.columns.responses > 0

    @cached_property
    def absent(self) -> Flags:
        return self._code(*_NEVER_THERE) & ~self.seen

    @cached_property
    def left(self) -> Flags:
        """Its client went before it saw how the request ended."""
        gone = (Outcome.CANCELLED, Outcome.UNFINISHED, Outcome.LATE)
        return self.columns.of(*gone) | self._code(*_LOST)

    @cached_property
    def uncertain(self) -> Flags:
        """It may never have come to a model."""
        sure = self.columns.of(Outcome.COMPLETED) | self._code(*_SURELY_THERE) | self.seen
        return ~sure & ~self.absent

    @cached_property
    def died(self) -> Flags:
        return self._code("engine_died")

    @cached_property
    def refused(self) -> Flags:
        """It was answered with an error before it began."""
        failed = self.columns.of(Outcome.REJECTED, Outcome.FAILED)
        return failed & ~self.absent & ~self.left & ~self.died

    def completed(self, *reasons: str) -> Flags:
        whole = self.columns.of(Outcome.COMPLETED)
        return whole & self.columns.text_is(self.columns.finish, *reasons) if reasons else whole

    def _code(self, *codes: str) -> Flags:
        return self.columns.text_is(self.columns.code, *codes)


def _requests(server: ServerCounters, ends: _Ends) -> Match | None:
    """Every request runs once through preprocessing, which tells also of those that it refuses as of served ones."""
    count = _arrived(server)
    if count is None:
        return None
    uncertain = _count(ends.uncertain)
    note = "all that came to the server, once for each run of preprocessing"
    if absent := _count(ends.absent):
        note += f"; {absent} never came there"
    if uncertain:
        note += f"; of {uncertain} that ended before any response nobody can say whether they did"
    return Match("requests", _count(~ends.absent), count, note, fewer=uncertain)


def _by_end(server: ServerCounters, ends: _Ends, plan: Plan) -> list[Match | None]:
    left = _count(ends.left)
    reasons = server.by_label(ENDS, "reason")
    if not reasons:
        return [_ensemble(server, ends, plan, left)]
    known = {reason: round(number) for reason, number in reasons.items()}
    columns = ends.columns
    late, gone = columns.of(Outcome.LATE), columns.of(Outcome.CANCELLED, Outcome.UNFINISHED)
    lost = left - _count(late) - _count(gone)
    found: list[Match | None] = [
        Match(name, _count(ends.completed(name)), known.get(reason, 0), f"completed with {reason}; {_LEFT}", 0, left)
        for name, reason in _REASONS.items()
    ]
    cancelled = _count(gone)
    note = "requests whose client left; those that were complete by then, or not yet there, are counted elsewhere"
    found.append(Match("cancelled", cancelled, known.get("CANCELED", 0), note, cancelled, left - cancelled))
    note = "requests that were not there in time; whose clock was first, the client's or the server's, decides"
    found.append(Match("late", _count(late), known.get("DEADLINE", 0), note, _count(late), cancelled + lost))
    found.append(Match("engine died", _count(ends.died), known.get("ERROR", 0), "the engine died under them", 0, left))
    found.append(_refused(server, ends, known))
    return found


def _refused(server: ServerCounters, ends: _Ends, known: dict[str, int]) -> Match | None:
    arrived = _arrived(server)
    if arrived is None:
        return None
    before = arrived - sum(known.values())
    unseen = _count(ends.left & ~ends.seen)
    note = f"by the engine {known.get('REJECTED', 0)}, between preprocessing and engine {before}"
    if unseen:
        note += f"; {unseen} whose client left before any response may be among the latter"
    return Match(
        *("refused", _count(ends.refused), before + known.get("REJECTED", 0), note),
        fewer=_count(ends.refused & ends.uncertain),
        more=unseen,
    )


def _ensemble(server: ServerCounters, ends: _Ends, plan: Plan, left: int) -> Match | None:
    """Where the engine counts no ends Triton does so for the ensemble: success is what was answered to its end."""
    model = plan.model or "ensemble"
    count = server.increase("nv_inference_request_success", model=model)
    if count is None or model != "ensemble":
        return None
    return Match("completed", _count(ends.completed()), round(count), f"as the ensemble ended them; {_LEFT}", 0, left)


def _tokens(server: ServerCounters, ends: _Ends, plan: Plan) -> list[Match | None]:
    columns, left = ends.columns, ends.left & ~ends.absent
    tells_ends = server.increase(ENDS) is not None
    unknown = _count((columns.input_tokens == UNKNOWN) & (left | ends.completed()))
    seen = columns.seen_tokens
    found: list[Match | None] = []
    if (count := _token_count(server, plan, "input")) is not None:
        note = "tokens of prompts"
        if unknown:
            note += f"; of {unknown} requests the client was not told how many"
        known = int(columns.input_tokens[columns.input_tokens != UNKNOWN].sum())
        found.append(Match("input tokens", known, count, note, 0, None if unknown else 0))
    if (count := _token_count(server, plan, "output")) is not None:
        unseen = int(np.maximum(columns.max_tokens - seen, 0)[left].sum())
        # The engine does not count tokens of requests under which it died; of TensorRT-LLM's nobody promises that it
        # counts those of cancelled ones.
        uncounted = int(seen[ends.died if tells_ends else ends.died | left].sum())
        note = "tokens of answers"
        if unseen:
            note += f"; for {_count(left)} clients that left the server may have made up to {unseen} more than they saw"
        if uncounted:
            note += f"; the server may leave out {uncounted} of answers that broke off"
        found.append(Match("output tokens", int(seen.sum()), count, note, uncounted, unseen))
    return found


def _token_count(server: ServerCounters, plan: Plan, kind: str) -> int | None:
    """Of the plan's own tenant where the server tells tenants apart, so that others do not count."""
    own = server.increase("inflight_tenant_tokens_total", tenant=plan.tenant, kind=kind) if plan.tenant else None
    found = server.increase(f"nv_llm_{kind}_token_len_sum") if own is None else own
    return None if found is None else round(found)


def _arrived(server: ServerCounters) -> int | None:
    served = server.increase("nv_inference_request_success", model="preprocessing")
    failed = server.increase("nv_inference_request_failure", model="preprocessing")
    return None if served is None else round(served + (failed or 0))


def _count(flags: Flags) -> int:
    return int(flags.sum())
