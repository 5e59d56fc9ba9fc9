"""Speculative decoding: proposes tokens, which the model verifies in one forward pass.

The engine chooses the next token by noise that depends on seed and place alone. A proposed token is accepted if it is
the one that would be chosen, so answers are the same with and without drafts, sampled ones too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from inflight.runtime.backends.openvino.block_pool import BlockPool
from inflight.runtime.backends.openvino.paged_model import Chunk, PagedModel
from inflight.runtime.backends.openvino.sampler import Sampler
from inflight.runtime.backends.openvino.sequence import Sequence
from inflight.runtime.backends.openvino.step_cost import StepCost
from inflight.runtime.messages import SpeculationStats

NGRAM_TOKENS = 3
"""So many tokens must have been before for what followed them to be proposed."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 16, 256
_NEWEST = 0.3
"""The weight of the newest draft in the mean of accepted tokens."""


@dataclass
class Record:
    """The drafts of one sequence: how many tokens were proposed and accepted, and whether to go on."""

    expected: float
    """How many tokens of a draft are accepted."""
    drafted: int = 0
    accepted: int = 0
    resumes_at: int = 0
    """The number of answered tokens from which on it is drafted again."""
    pause: int = _SHORTEST_PAUSE
    known: int = 0
    """How many tokens the draft model has computed, or the index holds."""
    followers: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Where the tokens begin that followed n-grams last."""

    @property
    def stats(self) -> SpeculationStats:
        return SpeculationStats(self.drafted, self.accepted)

    def add(self, drafted: int, accepted: int, needed: float, answered: int) -> None:
        """Note a draft; pause if fewer tokens are accepted than are needed for drafts to pay."""
        self.drafted += drafted
        self.accepted += accepted
        self.expected += _NEWEST * (accepted - self.expected)
        if self.expected < needed:
            self.resumes_at = answered + self.pause
            self.pause = min(2 * self.pause, _LONGEST_PAUSE)
        elif accepted >= needed:
            self.pause = _SHORTEST_PAUSE


class Speculation:
    """Proposes tokens by prompt lookup, or by a draft model that shares the block tables of the model."""

    def __init__(self, most: int, pool: BlockPool, sampler: Sampler, draft: PagedModel | None = None) -> None:
        self._most, self._pool, self._sampler, self._draft = most, pool, sampler, draft
        self._records: dict[int, Record] = {}
        self._draft_seconds = 0.0
        self._needed = 0.0
        """How many tokens of a draft must be accepted so that it pays."""

    def forget(self, handle: int) -> None:
        self._records.pop(handle, None)

    def stats(self, handle: int) -> SpeculationStats | None:
        record = self._records.get(handle)
        return record.stats if record is not None else None

    def verified(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Note how many proposed tokens of a sequence were accepted; it has the tokens that followed."""
        record = self._record(sequence)
        if drafted:
            record.add(drafted, accepted, self._needed, len(sequence.sampling.generated))
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

    def propose(self, sequences: Items[Sequence], cost: StepCost) -> dict[int, list[int]]:
        """Return drafts, by handles, for those of the decoding sequences for which they should pay."""
        drafting = {
            each.handle: each
            for each in sequences
            if self._room(each) > 0 and len(each.sampling.generated) >= self._record(each).resumes_at
        }
        if drafting and cost.per_token:
            price = self._most * cost.per_token + self._draft_seconds
            self._needed = price / (cost.seconds(len(sequences)) / len(sequences))
        if self._draft is None:
            found = {handle: self._look_up(sequence) for handle, sequence in drafting.items()}
            return {handle: draft for handle, draft in found.items() if draft}
        return self._by_model(drafting)

    def _record(self, sequence: Sequence) -> Record:
        return self._records.setdefault(sequence.handle, Record(self._most, known=sequence.computed))

    def _room(self, sequence: Sequence) -> int:
        """Return how many tokens to propose at most; behind them, the model adds one."""
        return min(self._most, sequence.request.max_tokens - len(sequence.sampling.generated) - 1)

    def _look_up(self, sequence: Sequence) -> list[int]:
        """Return what followed the last tokens where they were before."""
        record, tokens = self._record(sequence), sequence.tokens
        for end in range(max(record.known, NGRAM_TOKENS), len(tokens)):
            record.followers[tuple(tokens[end - NGRAM_TOKENS : end])] = end
        record.known = len(tokens)
        begin = record.followers.get(tuple(tokens[-NGRAM_TOKENS:]), len(tokens))
        return tokens[begin : begin + self._room(sequence)]

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
        if sequences:
            self._draft_seconds = (time.perf_counter() - started) / len(sequences)
        return drafts
