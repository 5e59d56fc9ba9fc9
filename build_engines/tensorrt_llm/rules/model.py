"""What of a settled recipe this model's sizes or family exclude."""

from __future__ import annotations

from collections.abc import Iterator

from build_engines.capabilities.tensorrt_llm import Architecture
from build_engines.checkpoints.model_facts import ModelFacts
from build_engines.tensorrt_llm.recipe import Recipe
from build_engines.tensorrt_llm.rules.speculation import DRAFTING

# builder.py drops these for others, with a warning.
_FUSIONS = {
    "reduce_fusion": ("LlamaForCausalLM", "Gemma2ForCausalLM"),
    "norm_quant_fusion": ("LlamaForCausalLM",),
    "user_buffer": ("LlamaForCausalLM",),
    "pp_reduce_scatter": ("MixtralForCausalLM",),
}


def sizes(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    """Yield a sentence for each thing that the model's sizes exclude."""
    parallel = recipe.tensor_parallel
    if facts.heads % parallel:
        yield f"tensor_parallel {parallel} doesn't divide the model's {facts.heads} attention heads; choose a divisor."
    if facts.kv_heads % parallel and parallel % facts.kv_heads:
        yield (
            f"tensor_parallel {parallel} and the model's {facts.kv_heads} KV heads don't divide one another; choose "
            "another."
        )
    if facts.inner % parallel:
        yield f"tensor_parallel {parallel} doesn't divide the model's inner size of {facts.inner}; choose a divisor."
    if recipe.pipeline_parallel > facts.layers:
        yield f"pipeline_parallel {recipe.pipeline_parallel} is more than the model's {facts.layers} layers; lower it."
    length = recipe.limits.max_seq_len or 0
    if length > facts.positions:
        yield f"limits.max_seq_len {length} is more than the {facts.positions} tokens that the model knows; lower it."
    block = recipe.calibration.awq_block_size
    if "awq" in recipe.quantization and (facts.hidden % block or facts.inner % (block * parallel)):
        yield (
            f"quantization {recipe.quantization} takes rows in blocks of {block} weights on each of {parallel} GPUs, "
            f"and the model's are {facts.hidden} and {facts.inner} wide; choose another calibration.awq_block_size, "
            "tensor_parallel or quantization."
        )


def family(recipe: Recipe, architecture: Architecture) -> Iterator[str]:
    """Yield a sentence for each thing that its scripts and its network exclude."""
    name, can = architecture.name, architecture.family
    mode = recipe.speculation.mode if recipe.speculation else None
    if recipe.pipeline_parallel > 1 and not can.pipeline:
        yield f"{name} can't be split by layers; leave pipeline_parallel at 1."
    if recipe.lora is not None and not can.lora:
        yield f"The engine of a {name} takes no adapters; leave lora out, or merge the adapter into the checkpoint."
    if mode == "lookahead_decoding" and not can.lookahead:
        yield (
            f"speculation.mode lookahead_decoding is not for {name}, whose engine makes no drafts; choose "
            "draft_tokens_external."
        )
    for fusion, names in _FUSIONS.items():
        if getattr(recipe.plugins, fusion) and name not in names:
            yield f"plugins.{fusion} is for {' and '.join(names)}, not {name}; leave it out."
    # A model with heads or a drafter has a name of its own, and builder.py goes by the name.
    if recipe.plugins.norm_quant_fusion and mode in DRAFTING:
        yield f"plugins.norm_quant_fusion is not for speculation.mode {mode}; leave one of them out."
    if recipe.plugins.reduce_fusion and mode in ("eagle", "explicit_draft_tokens"):
        yield f"plugins.reduce_fusion is not for speculation.mode {mode}; leave one of them out."
