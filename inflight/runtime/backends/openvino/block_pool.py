"""The blocks of the paged KV cache: shared by sequences that begin alike, and reused in the order of their last use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np

from inflight.runtime.backends.openvino.paged_model import BLOCK_TOKENS

_HASH_BYTES = 16


class BlockPool:
    """Counts the references of each block, and finds computed blocks by the tokens from the sequence's beginning on.

    A block that no sequence refers to keeps its keys and values until it is needed again, the longest unused first.
    The blocks of `allocate` never run out while no more are held than the pool has, shared ones counted once each.
    """

    def __init__(self, blocks: int) -> None:
        self._references = [0] * blocks
        self._unused: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._by_hash: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    @property
    def unused(self) -> int:
        return len(self._unused)

    def allocate(self) -> int:
        """Return a block with one reference, whose content is lost."""
        block, _ = self._unused.popitem(last=False)
        if (block_hash := self._hash_of.pop(block, None)) is not None:
            del self._by_hash[block_hash]
        self._references[block] = 1
        return block

    def known(self, chain: Iterable[bytes]) -> list[int]:
        """Return the blocks of the longest computed beginning of a chain, each with one more reference."""
        blocks: list[int] = []
        for block_hash in chain:
            block = self._by_hash.get(block_hash)
            if block is None:
                break
            blocks += self.share([block])
        return blocks

    def share(self, blocks: Sequence[int]) -> list[int]:
        """Return the blocks, each with one more reference."""
        for block in blocks:
            if not self._references[block]:
                del self._unused[block]
            self._references[block] += 1
        return list(blocks)

    def publish(self, block_hash: bytes, block: int) -> None:
        """Let later sequences find a block whose tokens are all computed; of equal blocks, the first."""
        if block_hash not in self._by_hash and block not in self._hash_of:
            self._by_hash[block_hash], self._hash_of[block] = block, block_hash

    def release(self, blocks: Sequence[int]) -> None:
        """Take back a reference of each block. The last ones are reused first: beginnings are shared more often."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if not self._references[block]:
                self._unused[block] = None
                if block not in self._hash_of:
                    self._unused.move_to_end(block, last=False)


class BlockHashes:
    """The hashes of a sequence's full blocks. `scope` tells apart what must not be shared: adapters and tenants."""

    def __init__(self, scope: str) -> None:
        self._scope = blake2b(scope.encode(), digest_size=_HASH_BYTES).digest()
        self.hashes: list[bytes] = []

    def at(self, blocks: int) -> bytes:
        """Return the hash of the first blocks."""
        return self.hashes[blocks - 1] if blocks and self.hashes else self._scope

    def copy(self) -> BlockHashes:
        other = BlockHashes("")
        other._scope, other.hashes = self._scope, list(self.hashes)
        return other

    def extend(self, tokens: Sequence[int]) -> None:
        """Add the hashes of blocks that became full; `tokens` are all of the sequence."""
        for begin in range(len(self.hashes) * BLOCK_TOKENS, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            block = np.array(tokens[begin : begin + BLOCK_TOKENS], np.int32).tobytes()
            self.hashes.append(blake2b(self.at(len(self.hashes)) + block, digest_size=_HASH_BYTES).digest())
