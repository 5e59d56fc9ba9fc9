"""A request on its way through a stepped engine, and what is known of it so far."""

from __future__ import annotations

from dataclasses import dataclass

from inflight.runtime.draft import Draft
from inflight.runtime.messages import (
    Beam,
    EngineLimits,
    EventSink,
    FinishReason,
    GenerationRequest,
    RequestError,
    Speculation,
    Timings,
    TokenEvent,
)
from inflight.runtime.stop_words import StopWords

_MOST_WORDS = 400
"""Characters of a library's own error message that are passed on."""


def refusal(error: Exception) -> tuple[str, str]:
    """Message and code by which an exception, raised because of one request, ends that request."""
    if isinstance(error, RequestError):
        return str(error), error.code
    words = " ".join(str(error).split())[:_MOST_WORDS] or type(error).__name__
    return f"the engine refused the request: {words}", "invalid_request"


@dataclass(eq=False)
class Entry:
    """`kv_blocks` is what its worst case needs, `tokens_made` counts what the stepper made, cut or not.

    `begun` says that tokens of it have been told, `unready` that its guide was still to be tried when the stepper was
    last asked, `ended` that its end was told though it still runs.
    """

    handle: int
    request: GenerationRequest
    on_event: EventSink
    kv_blocks: int
    arrival_ns: int
    admitted_ns: int = 0
    first_token_ns: int = 0
    tokens_made: int = 0
    begun: bool = False
    stop_words: StopWords | None = None
    draft: Draft | None = None
    told_speculation: Speculation | None = None
    unready: bool = False
    ended: bool = False

    @property
    def prefilling(self) -> bool:
        """A beam search shows nothing before its end, so it counts as generating, which is the most of its time."""
        return not self.first_token_ns and self.request.sampling.beam_width == 1

    @property
    def speculation(self) -> Speculation | None:
        """What came of the request's own draft, else what the stepper told last."""
        return self.draft.outcome if self.draft is not None else self.told_speculation

    def next_event(self, token_ids: tuple[int, ...], log_probs: tuple[float, ...]) -> TokenEvent:
        """New tokens that are not its last; those that are told first come with times and origin."""
        if self.begun:
            return TokenEvent(self.handle, token_ids, log_probs=log_probs)
        self.begun = True
        timings = self.timings(end_ns=0)
        return TokenEvent(self.handle, token_ids, timings=timings, log_probs=log_probs, origin=self.request.origin)

    def timings(self, end_ns: int) -> Timings:
        return Timings(self.arrival_ns, self.admitted_ns, self.first_token_ns, end_ns)

    def kv_blocks_filled(self, limits: EngineLimits, reason: FinishReason, beams: tuple[Beam, ...]) -> int:
        """Blocks that hold a token; of a prompt that is not computed to its end, none is counted.

        The last token of an answer is not in the cache, since nothing was computed after it; that is the end token,
        where there is one, which `tokens_made` does not count. Beams share the prompt's whole blocks.
        """
        if not self.first_token_ns:
            return 0
        prompt = len(self.request.prompt_ids)
        if not beams:
            answer = self.tokens_made if reason is FinishReason.STOP else max(self.tokens_made - 1, 0)
            return limits.blocks_of_tokens(prompt + answer)
        shared = prompt // limits.kv_block_tokens
        own = (limits.blocks_of_tokens(prompt + max(len(beam.token_ids) - 1, 0)) - shared for beam in beams)
        return shared + sum(own)
