from __future__ import annotations

import pytest

from build_engines.plan.formats import GPU_KV, GPU_WEIGHTS
from build_engines.plan.gpu import Split, activation_bytes, sequence_bytes, splits, token_bytes, weights_bytes
from tests.build_engines.plan.test_published import parameters_of, shape_of
from tests.build_engines.plan.test_shape import read

BF16, KV = GPU_WEIGHTS["bf16"], GPU_KV["bf16"]


def test_a_model_is_split_where_heads_and_layers_stay_whole() -> None:
    # 28 heads, 4 KV heads, 28 layers, 18944 = 2^9 * 37 inner
    found = splits(shape_of("qwen2.5-7b"), 8)
    assert found[0] == Split(1, 1)
    assert {split.tensor for split in found} == {1, 2, 4}  # 7 heads don't split 18944, 8 don't divide 28
    assert {split.pipeline for split in found} == {1, 2, 4, 7}
    assert all(split.gpus <= 8 for split in found)
    assert [split.gpus for split in found] == sorted(split.gpus for split in found)


def test_tensor_parallel_comes_before_pipeline_parallel() -> None:
    four = [split for split in splits(shape_of("llama-3.1-8b"), 4) if split.gpus == 4]
    assert four == [Split(4, 1), Split(2, 2), Split(1, 4)]


def test_tensor_and_pipeline_share_out_the_kv_cache() -> None:
    shape = shape_of("llama-3.1-70b")
    whole = token_bytes(shape, KV, Split())
    assert whole == 2 * 80 * 8 * 128 * 2
    assert token_bytes(shape, KV, Split(8, 1)) == whole // 8
    assert token_bytes(shape, KV, Split(2, 2)) == whole // 4


def test_kv_heads_are_repeated_where_there_are_fewer_than_gpus() -> None:
    shape = shape_of("llama-3.1-70b")
    assert Split(16, 1) in splits(shape, 16)
    assert token_bytes(shape, KV, Split(16, 1)) == token_bytes(shape, KV, Split(8, 1))


def test_weights_are_shared_out_but_for_the_embedding() -> None:
    parameters = parameters_of("llama-3.1-8b")
    layers = 2 * (parameters.linear + parameters.other)
    assert weights_bytes(parameters, BF16, Split()) == 2 * parameters.total
    expected = layers / 4 + 2 * parameters.embedding + 2 * parameters.output / 4
    assert weights_bytes(parameters, BF16, Split(4, 1)) == pytest.approx(expected, rel=1e-6)
    expected = layers / 4 + 2 * parameters.embedding
    assert weights_bytes(parameters, BF16, Split(1, 4)) == pytest.approx(expected, rel=1e-6)


def test_a_tied_embedding_counts_once_on_one_gpu() -> None:
    parameters = parameters_of("qwen2.5-0.5b")
    assert weights_bytes(parameters, BF16, Split()) == 2 * 494_032_768


def test_sequences_take_whole_blocks() -> None:
    shape = shape_of("llama-3.1-8b")
    each = token_bytes(shape, KV, Split())
    assert [sequence_bytes(shape, KV, Split(), tokens) // each for tokens in (1, 32, 33, 64)] == [32, 32, 64, 64]


@pytest.mark.parametrize(
    ("model", "tokens", "held"),
    [
        # 21 layers keep 8192 tokens, 21 their window of 4096 and a block
        ("gemma-2-9b", 8192, 21 * 8192 + 21 * 4128),
        ("gemma-2-9b", 2048, 42 * 2048),
        ("mistral-7b-v0.1", 32768, 32 * 4128),
        # the window of 2047 is rounded up to blocks
        ("phi-3-mini", 4096, 32 * (2048 + 32)),
    ],
)
def test_a_window_caps_what_its_layers_keep(model: str, tokens: int, held: int) -> None:
    shape = shape_of(model)
    each = token_bytes(shape, KV, Split()) // shape.layers
    assert sequence_bytes(shape, KV, Split(), tokens) == held * each


def test_the_fullest_stage_counts_where_windows_differ() -> None:
    shape = read("qwen2.5-7b", use_sliding_window=True, sliding_window=4096, max_window_layers=14)
    each = token_bytes(shape, KV, Split()) // shape.layers
    assert sequence_bytes(shape, KV, Split(1, 2), 32768) == 14 * 32768 * each


def test_activations_are_what_upstream_logs() -> None:
    # memory.md: "Allocated 1134.01 MiB for execution context memory" for an engine of the sizes of a 7B Llama
    assert activation_bytes(shape_of("llama-2-7b"), Split(), 8192) == pytest.approx(1134.01 * 2**20, rel=0.05)


def test_tensor_parallel_splits_activations_and_pipeline_parallel_does_not() -> None:
    shape = shape_of("llama-3.1-70b")
    whole = activation_bytes(shape, Split(), 8192)
    assert activation_bytes(shape, Split(4, 1), 8192) < whole / 2
    assert activation_bytes(shape, Split(1, 4), 8192) == whole


def test_a_token_visits_only_its_experts() -> None:
    assert activation_bytes(shape_of("mixtral-8x7b"), Split(), 8192) < 2 * activation_bytes(
        shape_of("mistral-7b-v0.1"), Split(), 8192
    )
