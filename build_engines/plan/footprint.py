"""The memory of an engine on one device, by its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

BLOCK = 32
"""Tokens of one block of the paged KV cache: TensorRT-LLM's default (`--tokens_per_block 32`) and OpenVINO's on
CPUs."""

KV_CACHE_FRACTION = 0.9
"""Of what is left, so much becomes KV cache: `kv_cache_free_gpu_mem_fraction` as TensorRT-LLM has it by default
(docs/source/reference/memory.md, "KV cache will by default allocate 90% of the remaining free GPU memory")."""


@dataclass(frozen=True)
class Footprint:
    """Bytes on the fullest device.

    `weights`; `activations`, which grow with the tokens of a step; `runtime`, which grows with the number of sequences;
    `overhead`, which is there anyway; `kv_token`, of one token in all layers; `sequence(tokens)`, the blocks of a whole
    sequence. `mapped` are pages of files that may be dropped and read again.
    """

    weights: int
    activations: int
    runtime: int
    overhead: int
    kv_token: int
    sequence: Callable[[int], int]
    mapped: int = 0

    @property
    def fixed(self) -> int:
        """Everything but the KV cache."""
        return self.weights + self.activations + self.runtime + self.overhead

    def room(self, memory: int) -> int:
        """Bytes of KV cache that fit into `memory` beside all else; below zero where even that doesn't fit."""
        left = memory - self.fixed
        return int(left * KV_CACHE_FRACTION) if left > 0 else left

    def sequences(self, memory: int, tokens: int) -> int:
        """Return how many sequences of this length fit at once."""
        return max(0, self.room(memory) // self.sequence(tokens))

    def needed(self, sequences: int, tokens: int) -> int:
        """Return the memory that this many sequences of this length need."""
        return self.fixed + int(sequences * self.sequence(tokens) / KV_CACHE_FRACTION)


def round_up_to_blocks(tokens: int) -> int:
    """Return the tokens rounded up to whole blocks."""
    return -(-tokens // BLOCK) * BLOCK
