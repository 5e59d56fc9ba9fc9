from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from build_engines.plan.families import FAMILIES
from build_engines.plan.parameters import corrected, count, stored
from build_engines.plan.shape import read_shape
from tests.fixtures.engines import TinyCheckpoint

_SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
_OLD = {"vocab_size": 320, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128}
_MORE: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {
        "num_experts": 6,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    },
    "qwen3": {"head_dim": 32},
    "qwen3_moe": {"num_experts": 6, "moe_intermediate_size": 32, "head_dim": 32},
    "gemma": {"head_dim": 32},
    "gemma2": {"head_dim": 32},
    "gemma3_text": {"head_dim": 32},
    "phi3": {"pad_token_id": 0},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
}


def sizes(model_type: str) -> dict[str, Any]:
    if model_type in ("gpt2", "gptj"):
        return _OLD | ({"rotary_dim": 8} if model_type == "gptj" else {})
    found = _SIZES | _MORE.get(model_type, {})
    if model_type in ("opt", "gpt_neox"):
        found.pop("num_key_value_heads")
    return found


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_shape_gives_as_many_parameters_as_the_model_class_has(model_type: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **sizes(model_type))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    counted = count(read_shape(config.to_dict(), model_type))
    assert counted.total == sum(one.numel() for one in model.parameters())
    matrices = [
        part.weight
        for name, part in model.named_modules()
        if type(part).__name__ in ("Linear", "Conv1D") and not name.endswith(("lm_head", "embed_out", "gate"))
    ]
    assert counted.linear == sum(matrix.numel() for matrix in matrices)
    rows = [len(matrix) if model_type != "gpt2" else matrix.shape[1] for matrix in matrices]
    assert counted.channels == sum(rows)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt2", "gemma2"])
def test_the_headers_of_weight_files_give_the_same(architecture: str, tiny_checkpoint: TinyCheckpoint) -> None:
    from build_engines.plan.model import read_model

    directory: Path = tiny_checkpoint(architecture)
    model = read_model(directory)
    assert model.counted == "weight files"
    assert model.notes == ()
    assert model.parameters == count(model.shape)


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
    assert stored([path], tied=True) == 8 * 4 + 12
    assert stored([path], tied=False) == 2 * 8 * 4 + 12


def test_what_files_hold_beyond_the_shape_belongs_to_the_layers() -> None:
    parameters = count(read_shape(_SIZES | {"model_type": "llama"}, "here"))
    assert corrected(parameters, parameters.total + 1000).linear == parameters.linear + 1000
    assert corrected(parameters, parameters.total + 1000).total == parameters.total + 1000
