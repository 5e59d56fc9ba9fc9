"""Resolves the defaults of a recipe from the model's config."""

from __future__ import annotations

from pathlib import Path

from build_engines.checkpoints.model_facts import ModelFacts
from build_engines.tensorrt_llm.recipe import Limits, Plugins, Recipe

# As upstream's converters resolve `--dtype auto`.
_AUTO_DTYPES = {"float32": "float16"}
# With these, builder.py accepts fp8 attention of prompts, and so a paged fp8 KV cache.
FP8_PRODUCTS = ("fp8", "w4a8_awq", "nvfp4")


def resolve_defaults(recipe: Recipe, facts: ModelFacts) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe with resolved dtype, context features and limits, and notes for the user."""
    dtype = _AUTO_DTYPES.get(facts.dtype, facts.dtype) if recipe.dtype == "auto" else recipe.dtype
    recipe = _absolute(recipe).model_copy(update={"dtype": dtype, "plugins": _plugins(recipe)})
    pages = _pages(recipe)
    paged = recipe.paged_context_fmha if recipe.paged_context_fmha is not None else pages
    settled = recipe.model_copy(
        update={
            "paged_context_fmha": paged,
            "kv_cache_reuse": recipe.kv_cache_reuse if recipe.kv_cache_reuse is not None else paged,
            "chunked_context": recipe.chunked_context if recipe.chunked_context is not None else paged,
            "fp8_context_fmha": (
                recipe.fp8_context_fmha if recipe.fp8_context_fmha is not None else _fp8_attention(recipe)
            ),
        }
    )
    return settled.model_copy(update={"limits": _limits(settled, facts)}), _notes(recipe, pages)


def _absolute(recipe: Recipe) -> Recipe:
    """Return the recipe with absolute paths."""
    changed: dict[str, object] = {}
    if recipe.lora is not None:
        directories = tuple(directory.resolve() for directory in recipe.lora.directories)
        changed["lora"] = recipe.lora.model_copy(update={"directories": directories})
    if recipe.speculation is not None and recipe.speculation.model is not None:
        changed["speculation"] = recipe.speculation.model_copy(update={"model": recipe.speculation.model.resolve()})
    dataset = Path(recipe.calibration.dataset)
    if dataset.is_dir():
        changed["calibration"] = recipe.calibration.model_copy(update={"dataset": str(dataset.resolve())})
    return recipe.model_copy(update=changed)


def _plugins(recipe: Recipe) -> Plugins:
    """Disable the GEMM plugin for weight streaming, which does not support it."""
    if recipe.weight_streaming and recipe.plugins.gemm == "auto":
        return recipe.plugins.model_copy(update={"gemm": "disable"})
    return recipe.plugins


def _pages(recipe: Recipe) -> bool:
    """Return whether the prompt phase can use the paged KV cache, by the checks of tensorrt_llm/builder.py.

    In float32 the attention operator falls back to unfused kernels (cpp/tensorrt_llm/common/attentionOp.cpp).
    """
    if not recipe.plugins.context_fmha or recipe.dtype == "float32":
        return False
    return recipe.kv_cache_dtype == "auto" or (recipe.kv_cache_dtype == "fp8" and recipe.quantization in FP8_PRODUCTS)


def _fp8_attention(recipe: Recipe) -> bool:
    """Return whether attention of prompts is in fp8; with paged context it follows the KV cache, as in builder.py."""
    if not recipe.plugins.context_fmha or recipe.quantization not in FP8_PRODUCTS:
        return False
    return recipe.kv_cache_dtype == "fp8"


def _limits(recipe: Recipe, facts: ModelFacts) -> Limits:
    """Return the limits with defaults: a prompt takes all but one token; without chunks a step holds a whole prompt."""
    limits = recipe.limits
    length = limits.max_seq_len or facts.positions
    longest = length - 1 if recipe.chunked_context else min(length - 1, limits.max_num_tokens)
    return limits.model_copy(update={"max_seq_len": length, "max_input_len": limits.max_input_len or max(longest, 1)})


def _notes(recipe: Recipe, pages: bool) -> tuple[str, ...]:
    if pages or recipe.paged_context_fmha is not None or not recipe.plugins.context_fmha:
        return ()
    if recipe.dtype == "float32":
        why = "In float32"
    else:
        why = f"With a KV cache of {recipe.kv_cache_dtype} and quantization {recipe.quantization},"
    return (
        f"{why} prompts can't be read from the paged cache, so prefixes are not reused and long prompts not computed "
        "in chunks.",
    )
