"""The memory of an engine on one device, by component."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

KV_CACHE_FRACTION = 0.9
"""Share of the free memory for the KV cache: TensorRT-LLM's default of `kv_cache_free_gpu_mem_fraction`
(docs/source/reference/memory.md, "KV cache will by default allocate 90% of the remaining free GPU memory")."""


@dataclass(frozen=True)
class Footprint:
    """Bytes on the fullest device.

    `activations` grow with the tokens of a step, `runtime` with the number of sequences; `overhead` is constant.
    `kv_token` is the cache of one token in all layers, `sequence(tokens)` the blocks of a whole sequence. `mapped` are
    pages of files that the system may drop and read again.
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
        """Bytes of everything except the KV cache."""
        return self.weights + self.activations + self.runtime + self.overhead

    def room(self, memory: int) -> int:
        """Return the bytes left in `memory` for the KV cache; below zero if the rest doesn't fit."""
        left = memory - self.fixed
        return int(left * KV_CACHE_FRACTION) if left > 0 else left

    def sequences(self, memory: int, tokens: int) -> int:
        """Return how many sequences of this length fit at once."""
        return max(0, self.room(memory) // self.sequence(tokens))

    def needed(self, sequences: int, tokens: int) -> int:
        """Return the memory that this many sequences of this length need."""
        return self.fixed + int(sequences * self.sequence(tokens) / KV_CACHE_FRACTION)
