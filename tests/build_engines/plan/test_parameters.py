from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from build_engines.plan.families import FAMILIES
from build_engines.plan.parameters import count_parameters, count_stored_parameters, with_total
from build_engines.plan.shape import read_shape
from build_engines.synthetic.shapes import TINY, decoder_fields
from tests.fixtures.engines import TinyCheckpoint

# Beside those of the synthetic tiny models: fields that add or remove parameters, and families without such a model.
_MORE: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "qwen2_moe": {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "lfm2": {"block_auto_adjust_ff_dim": True, "block_multiple_of": 32},
    "arcee": {"attention_bias": True, "mlp_bias": True},
    "olmo2": {"attention_bias": True},
    "hunyuan_v1_dense": {"head_dim": 32, "attention_bias": True},
    "stablelm": {"use_qkv_bias": True, "qk_layernorm": True},
    "cohere": {"use_qk_norm": True, "attention_bias": True},
    "nemotron": decoder_fields(2, 64, 160, 4, 2, 128, False, head_dim=32, attention_bias=True, mlp_bias=True),
    "gpt_neox": {"num_key_value_heads": 4},
    "falcon": {"num_kv_heads": 2, "new_decoder_architecture": True},
    "mpt": {"d_model": 64, "n_layers": 3, "n_heads": 4, "max_seq_len": 128},
}


def sizes(model_type: str) -> dict[str, Any]:
    tiny = TINY[f"tiny-{model_type}"].fields if f"tiny-{model_type}" in TINY else {}
    return {"vocab_size": 320, "pad_token_id": 0} | tiny | _MORE.get(model_type, {})


# transformers' module of GPT BigCode compiles a function as it is imported.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        # transformers 5.0 has no biases in two of PhiMoE's norms, which its checkpoints have.
        *((model_type, {}) for model_type in FAMILIES if model_type != "phimoe"),
        ("falcon", {"new_decoder_architecture": False}),
        ("falcon", {"new_decoder_architecture": False, "multi_query": False, "parallel_attn": False, "bias": True}),
        ("falcon", {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 96}),
        ("gpt_bigcode", {"multi_query": False, "n_inner": 96}),
        ("cohere", {"use_qk_norm": False, "tie_word_embeddings": False}),
        ("stablelm", {"use_parallel_residual": True, "qk_layernorm": False}),
        ("lfm2", {"block_auto_adjust_ff_dim": False}),
        ("nemotron", {"head_dim": None, "attention_bias": False, "mlp_bias": False}),
    ],
    ids=lambda value: (
        "-".join(f"{name}={value}" for name, value in value.items()) if isinstance(value, dict) else value
    ),
)
def test_the_shape_gives_as_many_parameters_as_the_model_class_has(model_type: str, changes: dict[str, Any]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **sizes(model_type) | changes)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    counted = count_parameters(read_shape(config.to_dict(), model_type))
    assert counted.total == sum(one.numel() for one in model.parameters())
    matrices = [
        part.weight
        for name, part in model.named_modules()
        if type(part).__name__ in ("Linear", "Conv1D", "FalconLinear")
        and not name.endswith(("lm_head", "embed_out", "gate", "router.layer"))
    ]
    experts = [part for name, part in model.named_parameters() if part.dim() == 3 and "conv" not in name]
    assert counted.linear == sum(matrix.numel() for matrix in [*matrices, *experts])
    rows = [len(matrix) if model_type != "gpt2" else matrix.shape[1] for matrix in matrices]
    rows += [len(matrix) * matrix.shape[1 if model_type != "gpt_oss" else 2] for matrix in experts]
    assert counted.channels == sum(rows)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt2", "gemma2"])
def test_the_headers_of_weight_files_give_the_same(architecture: str, tiny_checkpoint: TinyCheckpoint) -> None:
    from build_engines.plan.model import read_model

    directory: Path = tiny_checkpoint(architecture)
    model = read_model(directory)
    assert model.counted_from == "weight files"
    assert model.notes == ()
    assert model.parameters == count_parameters(model.shape)


def test_masks_and_a_second_copy_of_a_tied_matrix_are_no_parameters(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    path = tmp_path / "model.safetensors"
    tensors = {
        "wte.weight": torch.zeros(8, 4),
        "lm_head.weight": torch.zeros(8, 4),
        "h.0.attn.bias": torch.zeros(1, 1, 16, 16),
        "h.0.attn.c_attn.bias": torch.zeros(12),
    }
    save_file(tensors, path)
    assert count_stored_parameters([path], tied=True) == 8 * 4 + 12
    assert count_stored_parameters([path], tied=False) == 2 * 8 * 4 + 12


def test_what_files_hold_beyond_the_shape_belongs_to_the_layers() -> None:
    parameters = count_parameters(read_shape(sizes("llama") | {"model_type": "llama"}, "here"))
    assert with_total(parameters, parameters.total + 1000).linear == parameters.linear + 1000
    assert with_total(parameters, parameters.total + 1000).total == parameters.total + 1000
