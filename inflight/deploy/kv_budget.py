"""How many tokens the paged KV cache holds."""

from __future__ import annotations

import math

from build_engines.manifest import Manifest
from inflight.deploy import memory

# Bytes of one number, and for quantized ones the scale and the zero point (fp32) that go with each head and
# token.
_NUMBER_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "u8": 1}
_QUANTIZED_EXTRA_BYTES = 8
_SHARE = 0.25
_BLOCK = 32


def bytes_per_token(manifest: Manifest) -> int:
    """Bytes that one token takes in the KV cache: a key and a value per layer and KV head."""
    precision = manifest.kv_cache_precision
    head = manifest.head_dim * _NUMBER_BYTES[precision] + (_QUANTIZED_EXTRA_BYTES if precision == "u8" else 0)
    return 2 * manifest.layers * manifest.kv_heads * head


def default_tokens(
    manifest: Manifest,
    max_num_sequences: int,
    available_bytes: int | None = None,
    draft: Manifest | None = None,
) -> int:
    """Tokens for a KV cache of at most a quarter of the memory that is available now.

    A `draft` engine keeps every token in a cache of its own, which comes out of the same quarter. Never more than all
    sequences at their longest can use; a multiple of 32, as caches are made of blocks. Where it is less than one
    sequence at its longest, the engine refuses requests that don't fit.
    """
    if available_bytes is None:
        available_bytes = memory.available_bytes()
    each = bytes_per_token(manifest) + (bytes_per_token(draft) if draft is not None else 0)
    affordable = int(available_bytes * _SHARE) // each
    usable = max_num_sequences * blocks(manifest.max_sequence_length)
    return max(_BLOCK, min(affordable // _BLOCK * _BLOCK, usable))


def blocks(tokens: int) -> int:
    """Rounded up to whole blocks of the cache."""
    return math.ceil(tokens / _BLOCK) * _BLOCK
