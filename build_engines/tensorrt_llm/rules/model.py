"""Rules for a recipe that depend on the model's sizes or family."""

from __future__ import annotations

from collections.abc import Iterator

from build_engines.capabilities.tensorrt_llm import Architecture
from build_engines.checkpoints.model_facts import ModelFacts
from build_engines.tensorrt_llm.recipe import Recipe
from build_engines.tensorrt_llm.rules.speculation import DRAFTING

# builder.py ignores these for other models, with a warning.
_FUSIONS = {
    "reduce_fusion": ("LlamaForCausalLM", "Gemma2ForCausalLM"),
    "norm_quant_fusion": ("LlamaForCausalLM",),
    "user_buffer": ("LlamaForCausalLM",),
    "pp_reduce_scatter": ("MixtralForCausalLM",),
}


def sizes(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    """Yield a sentence for each setting that conflicts with the model's sizes."""
    parallel = recipe.tensor_parallel
    if facts.heads % parallel:
        yield f"tensor_parallel {parallel} doesn't divide the model's {facts.heads} attention heads; choose a divisor."
    if facts.kv_heads % parallel and parallel % facts.kv_heads:
        yield (
            f"tensor_parallel {parallel} and the model's {facts.kv_heads} KV heads don't divide each other; choose "
            "another."
        )
    if facts.inner % parallel:
        yield f"tensor_parallel {parallel} doesn't divide the model's inner size of {facts.inner}; choose a divisor."
    if recipe.pipeline_parallel > facts.layers:
        yield f"pipeline_parallel {recipe.pipeline_parallel} is more than the model's {facts.layers} layers; lower it."
    length = recipe.limits.max_seq_len or 0
    if length > facts.positions:
        yield f"limits.max_seq_len {length} is more than the model's {facts.positions} tokens; lower it."
    block = recipe.calibration.awq_block_size
    if "awq" in recipe.quantization and (facts.hidden % block or facts.inner % (block * parallel)):
        yield (
            f"quantization {recipe.quantization} needs a multiple of {block} weights per row on each of {parallel} GPUs"
            f", but the model has {facts.hidden} and {facts.inner}; choose another calibration.awq_block_size, "
            "tensor_parallel or quantization."
        )


def family(recipe: Recipe, architecture: Architecture) -> Iterator[str]:
    """Yield a sentence for each setting that the model's scripts or network do not support."""
    name, can = architecture.name, architecture.family
    mode = recipe.speculation.mode if recipe.speculation else None
    if recipe.pipeline_parallel > 1 and not can.pipeline:
        yield f"{name} can't be split by layers; leave pipeline_parallel at 1."
    if recipe.lora is not None and not can.lora:
        yield f"The engine of a {name} does not support adapters; leave out lora, or merge the adapter."
    if mode == "lookahead_decoding" and not can.lookahead:
        yield (f"speculation.mode lookahead_decoding does not support {name}; choose draft_tokens_external.")
    for fusion, names in _FUSIONS.items():
        if getattr(recipe.plugins, fusion) and name not in names:
            yield f"plugins.{fusion} is for {' and '.join(names)}, not {name}; leave it out."
    # A model with heads or a drafter has another name, and builder.py goes by the name.
    if recipe.plugins.norm_quant_fusion and mode in DRAFTING:
        yield f"plugins.norm_quant_fusion is not for speculation.mode {mode}; leave one of them out."
    if recipe.plugins.reduce_fusion and mode in ("eagle", "explicit_draft_tokens"):
        yield f"plugins.reduce_fusion is not for speculation.mode {mode}; leave one of them out."
