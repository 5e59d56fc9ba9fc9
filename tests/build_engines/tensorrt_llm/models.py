"""A config.json for each architecture, with the sizes and keys of a published model of that kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from build_engines.capabilities.tensorrt_llm import CAPABILITIES, Architecture
from build_engines.containers import ENGINE_LINE
from build_engines.tensorrt_llm.recipe import Recipe, read_recipe
from build_engines.tensorrt_llm.target import BuildPlan, plan_build

ARCHITECTURES = CAPABILITIES[ENGINE_LINE]
_MODERN: dict[str, Any] = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
# tiiuae/falcon-7b: 71 heads, which no number of GPUs shares.
FALCON_7B: dict[str, Any] = {
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "num_kv_heads": 71,
    "hidden_size": 4544,
    "new_decoder_architecture": False,
    "multi_query": True,
    "parallel_attn": True,
    "vocab_size": 65024,
    "torch_dtype": "bfloat16",
}
# Of the keys that say a size, those that the configs on the hub have: gpt2, EleutherAI/gpt-j-6b, mosaicml/mpt-7b,
# bigscience/bloom-7b1, bigcode/starcoder, tiiuae/falcon-40b.
_OWN_NAMES: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257},
    "GPTJForCausalLM": {
        "n_layer": 28,
        "n_head": 16,
        "n_embd": 4096,
        "n_inner": None,
        "n_positions": 2048,
        "vocab_size": 50400,
    },
    "MPTForCausalLM": {
        "n_layers": 32,
        "n_heads": 32,
        "d_model": 4096,
        "expansion_ratio": 4,
        "max_seq_len": 2048,
        "vocab_size": 50432,
    },
    "BloomForCausalLM": {
        "n_layer": 30,
        "num_attention_heads": 32,
        "n_embed": 4096,
        "n_inner": None,
        "vocab_size": 250880,
    },
    "GPTBigCodeForCausalLM": {
        "n_layer": 40,
        "n_head": 48,
        "n_embd": 6144,
        "n_inner": 24576,
        "n_positions": 8192,
        "vocab_size": 49152,
        "multi_query": True,
    },
    "FalconForCausalLM": {
        "num_hidden_layers": 60,
        "num_attention_heads": 128,
        "num_kv_heads": 8,
        "hidden_size": 8192,
        "new_decoder_architecture": True,
        "parallel_attn": True,
        "vocab_size": 65024,
        "torch_dtype": "bfloat16",
    },
}
_MODEL_TYPES = {"FalconForCausalLM": "falcon", "BloomForCausalLM": "bloom", "GPTBigCodeForCausalLM": "gpt_bigcode"}


def config_of(architecture: str) -> dict[str, Any]:
    own = _OWN_NAMES.get(architecture, _MODERN)
    return {"architectures": [architecture], "model_type": _MODEL_TYPES.get(architecture, "llama")} | own


def plan_of(architecture: Architecture, fields: dict[str, Any]) -> BuildPlan:
    """Settle and check a recipe for a model of that architecture, as a build does."""
    return plan_build(recipe_of(fields), Path("/models/m"), config_of(architecture.name))


def recipe_of(fields: dict[str, Any]) -> Recipe:
    return read_recipe(None, fields)
