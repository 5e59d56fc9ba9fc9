from __future__ import annotations

import pytest

from build_engines.manifest import KvPrecision
from inflight.deploy.repository.kv_budget import bytes_per_token, default_kv_cache_tokens
from tests.fixtures.manifests import manifest


@pytest.mark.parametrize(
    ("precision", "expected"),
    # keys and values, 4 layers, 2 heads of 64 numbers; quantized ones with 8 bytes of scale and zero point, values for
    # each token, keys for each channel of 32 tokens
    [("f32", 2 * 4 * 2 * 256), ("bf16", 2 * 4 * 2 * 128), ("f16", 2 * 4 * 2 * 128), ("u8", 4 * 2 * (64 + 16 + 72))],
)
def test_a_token_takes_a_key_and_a_value_per_layer_and_head(precision: KvPrecision, expected: int) -> None:
    assert bytes_per_token(manifest(precision)) == expected


def test_default_takes_a_quarter_of_the_available_memory() -> None:
    tokens = default_kv_cache_tokens(manifest(), max_num_sequences=10_000, available_bytes=1 << 30)
    assert tokens * bytes_per_token(manifest()) == 1 << 28


def test_default_never_takes_more_than_a_quarter_to_fill_a_block() -> None:
    available = 4 * 33 * bytes_per_token(manifest())
    assert default_kv_cache_tokens(manifest(), max_num_sequences=10_000, available_bytes=available) == 32


def test_a_draft_has_a_cache_of_its_own_out_of_the_same_memory() -> None:
    draft = manifest("f32")
    tokens = default_kv_cache_tokens(manifest(), max_num_sequences=10_000, available_bytes=3 << 30, draft=draft)
    assert tokens * (bytes_per_token(manifest()) + bytes_per_token(draft)) == 3 << 28


def test_default_never_exceeds_what_all_sequences_can_use() -> None:
    assert default_kv_cache_tokens(manifest(), max_num_sequences=8, available_bytes=1 << 40) == 8 * 2048


def test_a_machine_with_little_memory_gets_a_small_cache() -> None:
    small = default_kv_cache_tokens(
        manifest(), max_num_sequences=8, available_bytes=bytes_per_token(manifest()) * 4 * 320
    )
    assert small == 320
