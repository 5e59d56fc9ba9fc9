from __future__ import annotations

import pytest

from build_engines.plan.formats import GPU_KV, GPU_WEIGHTS
from build_engines.plan.gpu_memory import (
    Split,
    activation_bytes,
    footprint,
    sequence_bytes,
    splits,
    token_bytes,
    weights_bytes,
)
from build_engines.plan.gpus import GPUS
from build_engines.plan.parameters import count_parameters
from build_engines.plan.shape import read_shape
from build_engines.plan.size import GIB
from tests.build_engines.plan.example_shapes import read
from tests.build_engines.plan.published_models import parameters_of, shape_of

BF16, KV = GPU_WEIGHTS["bf16"], GPU_KV["bf16"]


def test_a_model_is_split_where_heads_and_layers_stay_whole() -> None:
    # 28 heads, 4 KV heads, 28 layers, 18944 = 2^9 * 37 inner
    possible = splits(shape_of("qwen2.5-7b"), 8)
    assert possible[0] == Split(1, 1)
    assert {split.tensor for split in possible} == {1, 2, 4}  # 7 heads don't split 18944, 8 don't divide 28
    assert {split.pipeline for split in possible} == {1, 2, 4, 7}
    assert all(split.gpus <= 8 for split in possible)
    assert [split.gpus for split in possible] == sorted(split.gpus for split in possible)


def test_kv_heads_split_evenly_or_are_repeated_evenly() -> None:
    shape = read("llama-3.1-8b", num_attention_heads=24, num_key_value_heads=6, intermediate_size=12288)
    tensors = {split.tensor for split in splits(shape, 12)}
    assert {1, 2, 12} <= tensors
    assert 4 not in tensors


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
    per_token = token_bytes(shape, KV, Split())
    assert [sequence_bytes(shape, KV, Split(), tokens) // per_token for tokens in (1, 32, 33, 64)] == [32, 32, 64, 64]


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
    per_layer = token_bytes(shape, KV, Split()) // shape.layers
    assert sequence_bytes(shape, KV, Split(), tokens) == held * per_layer


def test_the_fullest_stage_counts_where_windows_differ() -> None:
    shape = read("qwen2.5-7b", use_sliding_window=True, sliding_window=4096, max_window_layers=14)
    per_layer = token_bytes(shape, KV, Split()) // shape.layers
    assert sequence_bytes(shape, KV, Split(1, 2), 32768) == 14 * 32768 * per_layer


# What trtllm-bench's documentation of TensorRT-LLM 0.12 logs as a Llama; see docs/plan.md.
GPT_J = {"model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16, "n_positions": 2048, "vocab_size": 50400}


def test_an_engine_leaves_the_kv_cache_that_upstream_logs() -> None:
    # memory.md: of 79.10 GiB that CUDA tells 70.48 are left, and 63.44 become KV cache
    shape, parameters = shape_of("llama-2-7b"), parameters_of("llama-2-7b")
    fp8 = GPU_WEIGHTS["fp8"], GPU_KV["fp8"]
    plan = footprint(shape, parameters, *fp8, Split(), max_batch_size=256, max_num_tokens=8192)
    assert plan.activations == pytest.approx(1134.01 * 2**20, rel=0.05)
    assert plan.runtime == pytest.approx((43.29 + 180.30) * 2**20, rel=0.05)
    assert plan.room(GPUS["h100"].memory) == pytest.approx(63.44 * GIB, rel=0.01)


def test_the_other_log_of_upstream_is_that_of_a_gpt_j_and_fits() -> None:
    shape = read_shape(GPT_J, "gpt-j")
    assert token_bytes(shape, GPU_KV["fp8"], Split()) * 294_848 == pytest.approx(62.99 * GIB, rel=0.01)
    plan = footprint(shape, count_parameters(shape), BF16, KV, Split(), max_batch_size=4096, max_num_tokens=8192)
    assert plan.activations == pytest.approx(928.77 * 2**20, rel=0.05)
    assert plan.runtime == pytest.approx((1.14 + 4.35) * GIB, rel=0.05)


def test_tensor_parallel_splits_activations_and_pipeline_parallel_does_not() -> None:
    shape = shape_of("llama-3.1-70b")
    whole = activation_bytes(shape, Split(), 8192)
    assert activation_bytes(shape, Split(4, 1), 8192) < whole / 2
    assert activation_bytes(shape, Split(1, 4), 8192) == whole


def test_a_token_visits_only_its_experts() -> None:
    assert activation_bytes(shape_of("mixtral-8x7b"), Split(), 8192) < 2 * activation_bytes(
        shape_of("mistral-7b-v0.1"), Split(), 8192
    )
