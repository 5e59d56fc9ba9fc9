"""Computes the size of the paged KV cache in tokens."""

from __future__ import annotations

from build_engines.kv_cache import BLOCK, round_up_to_blocks, token_bytes
from build_engines.manifest import Manifest
from inflight.deploy import memory

KV_CACHE_FRACTION = 0.25


def bytes_per_token(manifest: Manifest) -> int:
    """Return the bytes that one token takes in the KV cache."""
    return token_bytes(manifest, manifest.kv_cache_precision)


def default_kv_cache_tokens(
    manifest: Manifest,
    max_num_sequences: int,
    available_bytes: int | None = None,
    draft: Manifest | None = None,
) -> int:
    """Return the tokens of a KV cache of at most a quarter of the available memory.

    A `draft` engine keeps every token in a separate cache, within the same quarter. The result is at most what all
    sequences use at full length, and a multiple of 32, the block size. If it is less than one sequence at full length,
    the engine refuses requests that don't fit.
    """
    if available_bytes is None:
        available_bytes = memory.available_bytes()
    per_token = bytes_per_token(manifest) + (bytes_per_token(draft) if draft is not None else 0)
    affordable = int(available_bytes * KV_CACHE_FRACTION) // per_token
    usable = max_num_sequences * round_up_to_blocks(manifest.max_seq_len)
    return max(BLOCK, min(affordable // BLOCK * BLOCK, usable))
