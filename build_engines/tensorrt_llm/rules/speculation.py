"""Rules for the speculation of a recipe, by itself and for a model."""

from __future__ import annotations

from collections.abc import Iterator

from build_engines.capabilities.tensorrt_llm import Architecture
from build_engines.tensorrt_llm.recipe import Recipe, SpeculationOptions

# Architectures that each converter of examples/{medusa,eagle,redrafter} reads.
DRAFTING = {
    "medusa": ("LlamaForCausalLM", "MixtralForCausalLM", "Qwen2ForCausalLM"),
    "eagle": ("LlamaForCausalLM",),
    "explicit_draft_tokens": ("LlamaForCausalLM",),
}
_QUANTIZATIONS = {
    "medusa": ("none", "int8_wo", "int4_wo"),
    "eagle": ("none", "int8_wo", "int4_wo"),
    "explicit_draft_tokens": ("none",),
}
# Verification reads drafts from the cache: upstream's README files of draft_target_model and prompt_lookup require
# this, and builder.py enables it for EAGLE.
_PAGED = ("draft_tokens_external", "eagle")
# Asserted in builder.py, the second in examples/eagle/convert_checkpoint.py too.
_EAGLE_REQUESTS = 512
_EAGLE_DRAFTS = 256


def speculation(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for each conflict within the recipe."""
    if recipe.speculation is None:
        return
    if recipe.gather_context_logits:
        yield "gather_context_logits and speculation exclude each other; leave one of them out."
    if recipe.limits.max_beam_width > 1:
        yield f"speculation needs limits.max_beam_width 1, not {recipe.limits.max_beam_width}; leave one of them out."
    mode = recipe.speculation.mode
    if mode in _PAGED and not recipe.paged_context_fmha:
        yield (
            f"speculation.mode {mode} takes paged_context_fmha, which is off; switch it on, with a kv_cache_dtype and "
            "quantization that allow it, or choose another mode."
        )
    yield from _model(recipe.speculation)
    yield from _lengths(recipe, recipe.speculation)


def _model(said: SpeculationOptions) -> Iterator[str]:
    loads = said.mode in DRAFTING
    if loads and said.model is None:
        yield f"speculation.mode {said.mode} needs speculation.model, the directory of the draft model; add it."
    if loads and said.model is not None and not (said.model / "config.json").is_file():
        yield f"speculation.model {said.model} has no config.json; check the path."
    if not loads and said.model is not None:
        yield (
            f"speculation.mode {said.mode} compiles no drafting model into the engine; leave speculation.model out, "
            "and serve the other engine with --draft-engine."
        )


def _lengths(recipe: Recipe, said: SpeculationOptions) -> Iterator[str]:
    if said.mode == "explicit_draft_tokens" and said.max_draft_len % said.beams:
        yield (
            f"speculation.max_draft_len {said.max_draft_len} is no multiple of speculation.beams {said.beams}, and "
            "each beam drafts as many tokens; change one of them."
        )
    if said.mode == "eagle" and said.max_draft_len > _EAGLE_DRAFTS:
        yield f"speculation.max_draft_len {said.max_draft_len} is more than the {_EAGLE_DRAFTS} of eagle; lower it."
    if said.mode == "eagle" and recipe.limits.max_batch_size > _EAGLE_REQUESTS:
        yield (
            f"limits.max_batch_size {recipe.limits.max_batch_size} is more than the {_EAGLE_REQUESTS} requests of "
            "speculation.mode eagle; lower it."
        )


def drafting(recipe: Recipe, architecture: Architecture) -> Iterator[str]:
    """Yield a sentence for each setting that upstream's converters of draft models do not support."""
    if recipe.speculation is None or recipe.speculation.mode not in DRAFTING:
        return
    mode, name = recipe.speculation.mode, architecture.name
    if name not in DRAFTING[mode]:
        yield f"speculation.mode {mode} is for {', '.join(DRAFTING[mode])}, not {name}; choose another mode."
    quantizations = _QUANTIZATIONS[mode]
    if recipe.quantization not in quantizations or recipe.kv_cache_dtype != "auto":
        yield (
            f"speculation.mode {mode} is converted with quantization {', '.join(quantizations)} and kv_cache_dtype "
            f"auto alone, not with {recipe.quantization} and {recipe.kv_cache_dtype}; choose one of those."
        )
    if mode != "medusa" and recipe.pipeline_parallel > 1:
        yield f"speculation.mode {mode} can't be split by layers; leave pipeline_parallel at 1."
