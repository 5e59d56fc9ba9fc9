"""The queue of requests that wait for a place in an engine."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from inflight.common.request_error import RequestError
from inflight.runtime.messages import (
    Beam,
    EngineLimits,
    EventSink,
    FinishReason,
    GenerationRequest,
    RequestTimings,
    SpeculationStats,
    TokenEvent,
)
from inflight.text.stop_words import StopWords

SINGLE_TOKENS = 4
"""The first tokens of an answer, each of which is sent with its step whatever the stream interval."""

_MAX_ERROR_CHARACTERS = 400
"""Characters of a library's own error message that are passed on."""


def error_from_exception(error: Exception) -> tuple[str, str]:
    """Return the message and code of an exception that one request caused and that ends this request."""
    if isinstance(error, RequestError):
        return str(error), error.code
    words = " ".join(str(error).split())[:_MAX_ERROR_CHARACTERS] or type(error).__name__
    return f"the engine refused the request: {words}", "invalid_request"


@dataclass(eq=False)
class ScheduledRequest:
    """A request of the scheduler: `kv_blocks` is its worst case, `generated_tokens` counts all tokens, cut or not.

    `emitted` is how many tokens its events had so far; `held_ids` wait for later ones.
    """

    handle: int
    request: GenerationRequest
    on_event: EventSink
    kv_blocks: int
    arrival_ns: int
    admitted_ns: int = 0
    first_token_ns: int = 0
    generated_tokens: int = 0
    emitted: int = 0
    held_ids: tuple[int, ...] = ()
    held_log_probs: tuple[float, ...] = ()
    prompt_log_probs: tuple[float, ...] = ()
    cached_tokens: int | None = None
    stop_words: StopWords | None = None
    speculation: SpeculationStats | None = None

    @property
    def prefilling(self) -> bool:
        """Return whether it has no token yet. A beam search counts as generating: it has no output before its end."""
        return not self.first_token_ns and self.request.sampling.beam_width == 1

    def next_event(self, token_ids: tuple[int, ...], log_probs: tuple[float, ...], interval: int) -> TokenEvent | None:
        """Return an event of tokens that are not the last, or None if they wait for the next ones.

        Beyond the first SINGLE_TOKENS of an answer, tokens wait until there are `interval` of them. The first event
        includes timings and metadata.
        """
        token_ids, log_probs = self.with_held(token_ids, log_probs)
        if self.emitted >= SINGLE_TOKENS and len(token_ids) < interval:
            self.held_ids, self.held_log_probs = token_ids, log_probs
            return None
        emitted, self.emitted = self.emitted, self.emitted + len(token_ids)
        if emitted:
            return TokenEvent(self.handle, token_ids, log_probs=log_probs)
        return TokenEvent(
            self.handle,
            token_ids,
            timings=self.timings(end_ns=0),
            log_probs=log_probs,
            prompt_log_probs=self.prompt_log_probs,
            metadata=self.request.metadata,
        )

    def with_held(
        self, token_ids: tuple[int, ...], log_probs: tuple[float, ...]
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return these tokens after those that wait for them, which no longer do."""
        if self.held_ids:
            token_ids, log_probs = self.held_ids + token_ids, self.held_log_probs + log_probs
            self.held_ids, self.held_log_probs = (), ()
        return token_ids, log_probs

    def timings(self, end_ns: int) -> RequestTimings:
        return RequestTimings(self.arrival_ns, self.admitted_ns, self.first_token_ns, end_ns)

    def kv_blocks_filled(self, limits: EngineLimits, reason: FinishReason, beams: tuple[Beam, ...]) -> int:
        """Return the number of blocks that hold a token; 0 while the prompt is not fully computed.

        The last token of an answer is not in the cache, since nothing is computed after it; if there is an end token,
        that is the last one, and `generated_tokens` does not count it. Beams share the prompt's full blocks.
        """
        if not self.first_token_ns:
            return 0
        prompt = len(self.request.prompt_ids)
        if not beams:
            answer = self.generated_tokens if reason is FinishReason.STOP else max(self.generated_tokens - 1, 0)
            return limits.blocks_for_tokens(prompt + answer)
        shared = prompt // limits.kv_block_tokens
        own = (limits.blocks_for_tokens(prompt + max(len(beam.token_ids) - 1, 0)) - shared for beam in beams)
        return shared + sum(own)


class RequestQueue:
    """Orders requests by priority, the highest first, then by arrival."""

    def __init__(self) -> None:
        self._arrivals = count()
        self._positions: dict[int, tuple[int, int]] = {}
        self._order: list[tuple[int, int, ScheduledRequest]] = []
        """Sorted by (-priority, arrival), which is unique, so entries are never compared."""
        self._deadlines: list[tuple[int, int]] = []
        """Heap of (deadline, handle) of the requests with a deadline."""

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[ScheduledRequest]:
        return (entry for _, _, entry in self._order)

    @property
    def has_deadlines(self) -> bool:
        return bool(self._deadlines)

    def push(self, entry: ScheduledRequest) -> None:
        place = (-entry.request.priority, next(self._arrivals))
        self._positions[entry.handle] = place
        insort(self._order, (*place, entry))
        if entry.request.deadline_ns is not None:
            insort(self._deadlines, (entry.request.deadline_ns, entry.handle))

    def remove(self, handle: int) -> ScheduledRequest | None:
        """Remove a request from any position and return it; None if it isn't queued."""
        place = self._positions.pop(handle, None)
        if place is None:
            return None
        entry = self._order.pop(bisect_left(self._order, place))[2]
        if entry.request.deadline_ns is not None:
            del self._deadlines[bisect_left(self._deadlines, (entry.request.deadline_ns, handle))]
        return entry

    def pop_expired(self, horizon_ns: int) -> Iterator[ScheduledRequest]:
        """Remove and yield requests whose deadline is at or before `horizon_ns`, the earliest first."""
        while self._deadlines and self._deadlines[0][0] <= horizon_ns:
            entry = self.remove(self._deadlines[0][1])
            if entry is not None:
                yield entry
