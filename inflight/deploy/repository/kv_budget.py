"""Computes the size of the paged KV cache in tokens."""

from __future__ import annotations

import math

from build_engines.manifest import Manifest
from inflight.deploy import memory

_NUMBER_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "u8": 1, "fp8": 1, "int8": 1}
# Quantized values have a scale and a zero point (fp32): V per head and token, K per channel and block
# (openvinotoolkit/openvino#29023 has the layout, #30166 makes it the default).
_QUANTIZED_EXTRA_BYTES = 8
_MEMORY_FRACTION = 0.25
_BLOCK_TOKENS = 32


def bytes_per_token(manifest: Manifest) -> int:
    """Return the bytes that one token takes in the KV cache: a key and a value per layer and KV head."""
    precision = manifest.kv_cache_precision
    head = 2 * manifest.head_dim * _NUMBER_BYTES[precision]
    if precision == "u8":
        head += _QUANTIZED_EXTRA_BYTES + manifest.head_dim * _QUANTIZED_EXTRA_BYTES // _BLOCK_TOKENS
    return manifest.layers * manifest.kv_heads * head


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
    each = bytes_per_token(manifest) + (bytes_per_token(draft) if draft is not None else 0)
    affordable = int(available_bytes * _MEMORY_FRACTION) // each
    usable = max_num_sequences * round_up_to_blocks(manifest.max_seq_len)
    return max(_BLOCK_TOKENS, min(affordable // _BLOCK_TOKENS * _BLOCK_TOKENS, usable))


def round_up_to_blocks(tokens: int) -> int:
    """Round up to whole blocks of the cache."""
    return math.ceil(tokens / _BLOCK_TOKENS) * _BLOCK_TOKENS
