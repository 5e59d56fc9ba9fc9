"""Speculative decoding: its restrictions, and counts of drafted and accepted tokens."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import openvino_genai

from inflight.runtime.backends.openvino.pipeline import NGRAM_TOKENS
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import GenerationRequest, RequestError, SpeculationStats


def check_speculation(request: GenerationRequest, options: EngineOptions) -> None:
    """Raise RequestError (`invalid_parameter`) for values that the library handles wrongly when it speculates."""
    if not (options.draft_dir or options.prompt_lookup):
        return
    how = "with a draft model" if options.draft_dir else "by prompt lookup"
    sampling = request.sampling
    for name, used in (
        (f"beam_width of {sampling.beam_width}", sampling.beam_width > 1),
        # After a rejected draft token, the library counts the prompt's tokens too.
        (f"min_tokens of {sampling.min_tokens}", sampling.min_tokens > 1),
        # The library's acceptance rule changes the distribution, and its count of these tokens is wrong.
        ("top_k or top_p", bool(options.draft_dir) and not sampling.greedy),
        ("guided_decoding_guide", bool(options.draft_dir) and request.guide is not None),
    ):
        if used:
            raise RequestError(
                f"this deployment speculates {how} and can't serve {name}; leave it out, or use a deployment that"
                " doesn't speculate",
                "invalid_parameter",
            )


def set_speculation(config: openvino_genai.GenerationConfig, options: EngineOptions) -> None:
    if options.draft_dir or options.prompt_lookup:
        config.num_assistant_tokens = options.num_draft_tokens
    if options.prompt_lookup:
        config.max_ngram_size = NGRAM_TOKENS


@dataclass
class DraftCounter:
    """Counts drafted and accepted tokens of one request; the library reports only the tokens of each step.

    All tokens of a step except the last were drafted. The number of proposed tokens follows from the library's rules:
    with a draft model, as many as the answer may still have; with prompt lookup, those after the first match of the
    last tokens. In an answer's last step only accepted tokens count, since a draft model stops at its own end token.
    """

    request: GenerationRequest
    options: EngineOptions
    tokens: array[int] = field(init=False)
    produced: int = 0
    drafted: int = 0
    accepted: int = 0

    def __post_init__(self) -> None:
        self.tokens = array("q", self.request.prompt_ids)

    def update(self, token_ids: tuple[int, ...], ended: bool) -> SpeculationStats:
        """Count the one or more tokens of a step, including an end token."""
        taken = len(token_ids) - 1
        offered = self._offered() if self.produced else 0
        self.drafted += min(offered, taken) if ended else max(offered, taken)
        self.accepted += taken
        self.produced += len(token_ids)
        self.tokens.extend(token_ids)
        return SpeculationStats(self.drafted, self.accepted)

    def _offered(self) -> int:
        most = min(self.options.num_draft_tokens, self.request.max_tokens - self.produced - 1)
        return min(most, self._found()) if self.options.prompt_lookup else most

    def _found(self) -> int:
        """Return how many tokens follow the first match of the last ones."""
        whole = self.tokens.tobytes()
        width = self.tokens.itemsize
        longest = NGRAM_TOKENS if len(self.tokens) > NGRAM_TOKENS else len(self.tokens) // 2
        for length in range(longest, 0, -1):
            place = _find(whole, whole[-length * width :], width)
            if place < len(self.tokens) - length:
                return len(self.tokens) - place - length
        return 0


def _find(whole: bytes, part: bytes, width: int) -> int:
    """Return the first position, in items, at which `part` occurs on an item boundary."""
    place = whole.find(part)
    while place % width:
        place = whole.find(part, place + 1)
    return place // width
