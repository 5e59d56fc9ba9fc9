"""A sequence of tokens that the engine computes: a request, or one beam of its search."""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from copy import copy

from inflight.runtime.backends.openvino.block_pool import BlockHashes, BlockPool
from inflight.runtime.backends.openvino.paged_model import BLOCK_TOKENS, Chunk, PagedModel
from inflight.runtime.backends.openvino.sampling_state import SamplingState
from inflight.runtime.messages import GenerationRequest, LogProb


class Sequence:
    """Its tokens, how many of them are computed, and the blocks that hold their keys and values."""

    def __init__(
        self, handle: int, request: GenerationRequest, sampling: SamplingState, reuses: bool, tenant: str
    ) -> None:
        self.handle, self.request, self.sampling, self._reuses = handle, request, sampling, reuses
        self.tokens = list(request.prompt_ids)
        self.blocks: list[int] = []
        self.computed = 0
        self.reused = 0
        """Tokens of the prompt that were computed for others."""
        self.prompt_log_probs = [LogProb(math.nan)] if request.prompt_log_probs else []
        """Those known and not told yet."""
        self._hashes = BlockHashes(f"{request.adapter} {tenant}")
        self._hashes.extend(self.tokens if reuses else ())
        self._published = 0

    @property
    def waiting(self) -> int:
        """Tokens that are not computed yet."""
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        """Whether its prompt is computed."""
        return len(self.tokens) > len(self.request.prompt_ids)

    @property
    def scores(self) -> bool:
        """Whether it needs logits behind each token of its prompt."""
        return self.request.prompt_log_probs and not self.decoding

    @property
    def prompt_key(self) -> tuple[bytes, tuple[int, ...]]:
        """Equal for sequences that begin with the same prompt and may share it."""
        hashed = len(self.request.prompt_ids) // BLOCK_TOKENS
        return self._hashes.at(hashed), self.request.prompt_ids[hashed * BLOCK_TOKENS :]

    def uncomputed(self, count: int) -> list[bytes]:
        """Return the hashes of the full blocks that its next `count` tokens are in."""
        begin = self.computed // BLOCK_TOKENS
        return self._hashes.hashes[begin : max(begin + 1, (self.computed + count) // BLOCK_TOKENS)]

    def find_known(self, pool: BlockPool, left: int = 1) -> None:
        """Take over blocks that others have computed. Some tokens are `left`, since logits are needed."""
        if self.computed == len(self.blocks) * BLOCK_TOKENS:
            last = max(len(self.tokens) - left, 0) // BLOCK_TOKENS
            self.blocks += pool.known(self._hashes.hashes[len(self.blocks) : last])
            tokens = len(self.blocks) * BLOCK_TOKENS
            self.reused += tokens - self.computed
            self.computed = self._published = tokens

    def chunk(self, count: int, pool: BlockPool, drafts: Items[int] = ()) -> Chunk:
        """Return its next tokens to compute, and behind them those of a draft."""
        end = self.computed + count
        whole = end == len(self.tokens)
        sampled = count if self.scores else 1 + len(drafts) if whole else 0
        tokens = self.tokens if whole and not drafts else [*self.tokens[:end], *drafts]
        return self.chunk_of(tokens, self.computed, pool, sampled)

    def chunk_of(self, tokens: Items[int], past: int, pool: BlockPool, sampled: int = 1) -> Chunk:
        """Return tokens to compute behind the first `past` ones of them, in its blocks."""
        while len(self.blocks) * BLOCK_TOKENS < len(tokens):
            self.blocks.append(pool.allocate())
        return Chunk(tokens[past:], past, self.blocks, sampled, self.request.adapter)

    def publish(self, pool: BlockPool, computed: int) -> None:
        """Let other sequences find the blocks that became full and computed."""
        if not self._reuses or computed - self._published < BLOCK_TOKENS:
            return
        self._hashes.extend(self.tokens)
        for place in range(self._published // BLOCK_TOKENS, computed // BLOCK_TOKENS):
            pool.publish(self._hashes.hashes[place], self.blocks[place])
        self._published = computed // BLOCK_TOKENS * BLOCK_TOKENS

    def follow(self, leader: Sequence, pool: BlockPool, models: Items[PagedModel]) -> None:
        """Share what another sequence has computed of the same tokens; of a part of a block, get a copy."""
        full = leader.computed // BLOCK_TOKENS
        before, self.blocks = self.blocks, pool.share(leader.blocks[:full])
        pool.release(before)
        if leader.computed % BLOCK_TOKENS:
            self.blocks.append(pool.allocate())
            for model in models:
                model.copy_block(leader.blocks[full], self.blocks[-1])
        self.reused += leader.computed - self.computed
        self.computed, self._published = leader.computed, full * BLOCK_TOKENS

    def fork(self, pool: BlockPool, models: Items[PagedModel]) -> Sequence:
        """Return another sequence that goes on from here."""
        other = copy(self)
        other.tokens, other._hashes, other.blocks = list(self.tokens), self._hashes.copy(), []
        other.follow(self, pool, models)
        return other
