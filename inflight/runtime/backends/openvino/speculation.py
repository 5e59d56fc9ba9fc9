"""Speculative decoding: proposes tokens, which the model verifies in one forward pass.

The engine chooses the next token by noise that depends on seed and place alone. A proposed token is accepted if it is
the one that would be chosen, so answers are the same with and without drafts, sampled ones too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import cycle, islice

from inflight.runtime.backends.openvino.block_pool import BlockPool
from inflight.runtime.backends.openvino.paged_model import Chunk, PagedModel
from inflight.runtime.backends.openvino.sampler import Sampler
from inflight.runtime.backends.openvino.sequence import Sequence
from inflight.runtime.backends.openvino.step_cost import StepCost
from inflight.runtime.messages import SpeculationStats

NGRAM_TOKENS = 3
"""So many tokens must have been before for what followed them to be proposed."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 32, 512
"""Steps until drafts are tried again that did not pay."""
_NEWEST, _NEWEST_OF_ALL = 0.3, 0.05
"""The weight of the newest draft in the mean of accepted tokens of its sequence, and of all sequences."""
_LEAST = 0.5
"""A sequence of which fewer tokens of a draft are accepted gets drafts only when they are tried again."""


@dataclass
class Record:
    """The drafts of one sequence."""

    expected: float
    """How many tokens of a draft are accepted; it has about as many."""
    drafted: int = 0
    accepted: int = 0
    known: int = 0
    """How many tokens the draft model has computed, or the index holds."""
    followers: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Where the tokens begin that followed n-grams last."""


class Speculation:
    """Proposes tokens by prompt lookup, or by a draft model that shares the block tables of the model.

    Drafts are left out of a step if the tokens that will probably be accepted take less time without them: a step with
    drafts takes longer from the first proposed token on, as it has another shape than the steps before and after it.
    """

    def __init__(self, most: int, pool: BlockPool, sampler: Sampler, draft: PagedModel | None = None) -> None:
        self._most, self._pool, self._sampler, self._draft = most, pool, sampler, draft
        self._records: dict[int, Record] = {}
        self._usual = float(most)
        """How many tokens of a draft are accepted, over all sequences: what is expected of a new one."""
        self._plain, self._more = StepCost(), StepCost()
        """Seconds of steps without drafts by their sequences, and what drafts add to them by their tokens."""
        self._draft_seconds = 0.0
        """That the draft model takes for a token."""
        self._steps, self._tries_at, self._pause = 0, 0, _SHORTEST_PAUSE

    def forget(self, handle: int) -> None:
        self._records.pop(handle, None)

    def stats(self, handle: int) -> SpeculationStats | None:
        record = self._records.get(handle)
        return None if record is None else SpeculationStats(record.drafted, record.accepted)

    def observe(self, sequences: int, drafted: int, seconds: float) -> None:
        """Note how long a step took that computed no prompts."""
        if not drafted:
            self._plain.add(sequences, seconds)
        elif plain := self._plain.seconds(sequences):
            self._more.add(drafted, max(seconds - plain, 0.0))

    def verified(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Note how many proposed tokens of a sequence were accepted; it has the tokens that followed."""
        record = self._record(sequence)
        if drafted:
            record.drafted += drafted
            record.accepted += accepted
            length = accepted if accepted < drafted else min(2 * drafted, self._most)  # of a longer draft
            record.expected += _NEWEST * (length - record.expected)
            self._usual += _NEWEST_OF_ALL * (length - self._usual)
        record.known = min(record.known, len(sequence.tokens) - 1)

    def known(self, sequence: Sequence) -> int:
        """Return how many of its tokens are computed in all models."""
        return sequence.computed if self._draft is None else min(sequence.computed, self._record(sequence).known)

    def compute(self, chunks: Items[Chunk], sequences: Items[Sequence]) -> None:
        """Compute prompts in the draft model too."""
        if self._draft is None or not chunks:
            return
        self._draft.forward([Chunk(each.tokens, each.past, each.blocks, 0) for each in chunks])
        for sequence, chunk in zip(sequences, chunks, strict=True):
            self._record(sequence).known = chunk.past + len(chunk.tokens)

    def propose(self, sequences: Items[Sequence]) -> dict[int, list[int]]:
        """Return drafts, by handles, for those of the decoding sequences for which they should pay."""
        self._steps += 1
        tries = self._steps >= self._tries_at
        drafting = {
            each.handle: each
            for each in sequences
            if self._room(each) > 0 and (tries or self._record(each).expected >= _LEAST)
        }
        drafts: dict[int, list[int]] = {}
        if self._draft is None:
            drafts = {handle: draft for handle, each in drafting.items() if (draft := self._look_up(each))}
            drafting = {handle: drafting[handle] for handle in drafts}
        if not drafting:
            return {}
        lengths = {handle: len(drafts.get(handle, ())) or self._room(each) for handle, each in drafting.items()}
        tokens = sum(lengths.values())
        accepted = sum(min(self._records[handle].expected, length) for handle, length in lengths.items())
        gain = accepted * self._plain.seconds(len(sequences)) / len(sequences)
        pays = gain >= self._more.seconds(tokens) + tokens * self._draft_seconds
        if tries:
            self._pause = _SHORTEST_PAUSE if pays else min(2 * self._pause, _LONGEST_PAUSE)
            self._tries_at = self._steps + self._pause
        if not (pays or tries):
            return {}
        return drafts if self._draft is None else self._by_model(drafting)

    def _record(self, sequence: Sequence) -> Record:
        return self._records.setdefault(sequence.handle, Record(self._usual, known=sequence.computed))

    def _room(self, sequence: Sequence) -> int:
        """Return how many tokens to propose at most; behind them, the model adds one."""
        length = min(self._most, max(round(self._record(sequence).expected), 1))
        return min(length, sequence.request.max_tokens - len(sequence.sampling.generated) - 1)

    def _look_up(self, sequence: Sequence) -> list[int]:
        """Return what followed the last tokens where they were before."""
        record, tokens = self._record(sequence), sequence.tokens
        for end in range(max(record.known, NGRAM_TOKENS), len(tokens)):
            record.followers[tuple(tokens[end - NGRAM_TOKENS : end])] = end
        record.known = len(tokens)
        begin = record.followers.get(tuple(tokens[-NGRAM_TOKENS:]), len(tokens))
        followed = tokens[begin : begin + self._room(sequence)]
        return [*islice(cycle(followed), self._room(sequence))]  # what was just before may repeat itself

    def _by_model(self, sequences: dict[int, Sequence]) -> dict[int, list[int]]:
        assert self._draft is not None
        started = time.perf_counter()
        drafts: dict[int, list[int]] = {handle: [] for handle in sequences}
        for length in range(self._most):
            going_on = [each for each in sequences.values() if length < self._room(each)]
            if not going_on:
                break
            chunks = []
            for each in going_on:
                tokens, record = [*each.tokens, *drafts[each.handle]], self._records[each.handle]
                chunks.append(each.chunk_of(tokens, record.known, self._pool))
                record.known = len(tokens)
            logits = self._draft.forward(chunks)
            states = [each.sampling.ahead(drafts[each.handle]) for each in going_on]
            for each, choice in zip(going_on, self._sampler.sample(logits, states), strict=True):
                drafts[each.handle].append(choice.token)
        if drafted := sum(map(len, drafts.values())):
            self._draft_seconds = (time.perf_counter() - started) / drafted
        return drafts
