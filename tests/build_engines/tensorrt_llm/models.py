"""A config.json for each architecture, of the sizes of a published model of its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from build_engines.containers import ENGINE_LINE
from build_engines.tensorrt_llm.capabilities import CAPABILITIES, Architecture
from build_engines.tensorrt_llm.recipe import Recipe
from build_engines.tensorrt_llm.recipe_file import read_recipe
from build_engines.tensorrt_llm.target import Plan, plan_build

ARCHITECTURES = CAPABILITIES[ENGINE_LINE]
_MODERN = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
_OWN_NAMES = {
    "GPT2LMHeadModel": {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257},
    "GPTJForCausalLM": {"n_layer": 28, "n_head": 16, "n_embd": 4096, "n_positions": 2048, "vocab_size": 50400},
    "MPTForCausalLM": {"n_layers": 32, "n_heads": 32, "d_model": 4096, "max_seq_len": 2048, "vocab_size": 50432},
    "BloomForCausalLM": {"n_layer": 30, "n_head": 32, "hidden_size": 4096, "vocab_size": 250880},
    "GPTBigCodeForCausalLM": {
        "n_layer": 40,
        "n_head": 48,
        "n_embd": 6144,
        "n_positions": 8192,
        "vocab_size": 49152,
        "multi_query": True,
    },
    "FalconForCausalLM": {
        "num_hidden_layers": 32,
        "num_attention_heads": 64,
        "hidden_size": 4096,
        "vocab_size": 65024,
        "max_position_embeddings": 2048,
        "multi_query": True,
    },
}


def config_of(architecture: str) -> dict[str, Any]:
    own = _OWN_NAMES.get(architecture, _MODERN)
    return {"architectures": [architecture], "model_type": architecture[:5].lower()} | own


def plan_of(architecture: Architecture, fields: dict[str, Any]) -> Plan:
    """Settle and check a recipe for a model of that architecture, as a build does."""
    return plan_build(recipe_of(fields), Path("/models/m"), config_of(architecture.name))


def recipe_of(fields: dict[str, Any]) -> Recipe:
    return read_recipe(None, fields)
