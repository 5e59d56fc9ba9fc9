from __future__ import annotations

import itertools
from typing import Any

import pytest

from build_engines.errors import BuildError
from build_engines.plan.parameters import count_parameters
from build_engines.plan.shape import read_shape
from tests.build_engines.plan.example_shapes import read
from tests.build_engines.plan.published import SHAPES


def refusal(model: str, **changes: Any) -> BuildError:
    with pytest.raises(BuildError) as caught:
        read(model, **changes)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count("./my-model") == 1
    return caught.value


def test_without_kv_heads_every_head_has_its_own() -> None:
    shape = read("llama-3.1-8b", num_key_value_heads=...)
    assert shape.kv_heads == shape.heads == 32


@pytest.mark.parametrize(
    ("changes", "kv_heads"),
    [
        ({}, 1),
        ({"num_kv_heads": 71}, 1),  # the config of the 7B says so beside
        ({"multi_query": False}, 71),
        ({"new_decoder_architecture": True, "num_attention_heads": 128, "num_kv_heads": 8, "hidden_size": 8192}, 8),
    ],
)
def test_falcon_has_one_kv_head_or_those_of_its_new_kind(changes: dict[str, Any], kv_heads: int) -> None:
    assert read("falcon-7b", **changes).kv_heads == kv_heads


def test_a_length_that_a_config_leaves_out_is_the_familys() -> None:
    assert read("falcon-7b").positions == 2048
    assert read("bloom", seq_length=...).positions == 2048
    assert read("bloom", seq_length=1024).positions == 1024


def test_all_that_is_compiled_can_be_planned() -> None:
    from build_engines.capabilities.tensorrt_llm import CAPABILITIES
    from build_engines.plan.families import FAMILIES

    compiled = {name for architectures in CAPABILITIES.values() for name in architectures}
    assert compiled - {family.name for family in FAMILIES.values()} == set()


def test_the_size_of_a_head_is_given_or_derived() -> None:
    assert read("llama-3.1-8b").head_dim == 128
    assert read("qwen3-235b-a22b").head_dim == 128  # 4096 / 64 would be 64
    assert read("gemma-2-9b", head_dim=...).head_dim == 256


@pytest.mark.parametrize(
    ("model", "changes", "windows"),
    [
        ("llama-3.1-8b", {"sliding_window": 4096}, [None] * 32),
        ("mistral-7b-v0.1", {}, [4096] * 32),
        ("mistral-7b-v0.1", {"sliding_window": None}, [None] * 32),
        ("gemma-2-9b", {}, [4096, None] * 21),
        ("qwen2.5-7b", {}, [None] * 28),
        ("qwen2.5-7b", {"use_sliding_window": True, "max_window_layers": 20}, [None] * 20 + [131072] * 8),
        ("qwen2.5-7b", {"use_sliding_window": True, "max_window_layers": 0}, [131072] * 28),
        (
            "gemma-2-2b",
            {"model_type": "gemma3_text", "sliding_window": 512},
            [512] * 5 + [None] + [512] * 5 + [None] + [512] * 5 + [None] + [512] * 5 + [None] + [512] * 2,
        ),
        (
            "mistral-7b-v0.1",
            {"layer_types": ["full_attention"] + ["sliding_attention"] * 31},
            [None] + [4096] * 31,
        ),
    ],
)
def test_each_layer_looks_back_as_far_as_its_family_does(
    model: str, changes: dict[str, Any], windows: list[int | None]
) -> None:
    assert list(read(model, **changes).windows) == windows


def test_experts_stand_where_the_config_puts_them() -> None:
    experts = read("qwen3-235b-a22b", decoder_sparse_step=2, mlp_only_layers=[1, 93]).experts
    assert experts
    assert (experts.count, experts.per_token, experts.inner, experts.layers) == (128, 8, 1536, 47 - 2)


@pytest.mark.parametrize("changes", [{"model_type": "deepseek_v3"}, {"kv_lora_rank": 512}])
def test_multi_head_latent_attention_is_refused_in_one_sentence(changes: dict[str, Any]) -> None:
    error = refusal("llama-3.1-8b", **changes)
    assert error.code == "unsupported_architecture"
    assert "multi-head latent attention" in str(error)


def test_an_unknown_architecture_names_the_known_ones() -> None:
    error = refusal("llama-3.1-8b", model_type="mamba")
    assert error.code == "unsupported_architecture"
    assert "qwen3_moe" in str(error)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"vocab_size": "m" * 4096}, "vocab_size is 'mmm"),
        ({"hidden_size": 10**300}, "more than any model has"),
        ({"num_hidden_layers": 10**18}, "more than any model has"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"architectures": "Llama\n"}, "architectures is 'Llama\\n'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"quantization_config": {"quant_method": "\ud800"}}, "quant_method is '\\ud800'"),
        ({"num_attention_heads": -32}, "num_attention_heads is -32"),
        ({"intermediate_size": ...}, "intermediate_size is missing"),
        ({"num_key_value_heads": 5}, "32 attention heads don't share 5 KV heads evenly"),
        ({"sliding_window": 0, "model_type": "mistral"}, "sliding_window is 0"),
        ({"layer_types": ["full_attention"], "sliding_window": 9, "model_type": "mistral"}, "layer_types"),
        ({"model_type": "qwen3_moe"}, "num_experts or moe_intermediate_size is missing"),
    ],
)
def test_a_config_without_what_is_needed_says_what(changes: dict[str, Any], words: str) -> None:
    error = refusal("llama-3.1-8b", **changes)
    assert error.code == "not_a_checkpoint"
    assert words in str(error)


def test_a_config_without_a_model_type_is_no_model() -> None:
    assert refusal("llama-3.1-8b", model_type=...).code == "not_a_checkpoint"


@pytest.mark.parametrize("model", ["gemma-2-9b", "qwen2.5-7b", "qwen3-235b-a22b", "mixtral-8x7b", "opt-13b"])
def test_no_value_of_any_field_is_a_traceback(model: str) -> None:
    more = {"layer_types": [], "mlp_only_layers": [], "architectures": [], "quantization_config": {}, "head_dim": 64}
    config = SHAPES[model] | more | {"use_sliding_window": True, "decoder_sparse_step": 1, "kv_lora_rank": None}
    values: list[Any] = [None, -1, 0, 1, True, 1.5, 10**30, "x", [], ["x"], [[]], {}, {"x": 1}]
    sentences = []
    for field, odd in itertools.product(config, values):
        try:
            shape = read_shape(config | {field: odd}, "./my-model")
        except BuildError as error:
            sentences.append(str(error))
        else:
            assert len(shape.windows) == shape.layers
            assert count_parameters(shape).total > 0
    assert len(sentences) > 3 * len(config)
    assert not any("\n" in sentence for sentence in sentences)
