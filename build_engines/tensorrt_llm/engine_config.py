"""Reads the config.json that trtllm-build writes beside its engines, and compares it with the recipe."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError
from build_engines.tensorrt_llm.recipe import Recipe

# Names of quantizations in config.json: QuantAlgo in tensorrt_llm/quantization/mode.py. Smooth quantization has forms.
_ALGORITHMS = {
    "none": (None, "NO_QUANT"),
    "fp8": ("FP8",),
    "int8_sq": ("W8A8_SQ_PER_CHANNEL", "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", "W8A8_SQ_PER_TENSOR_PLUGIN"),
    "int4_awq": ("W4A16_AWQ",),
    "w4a8_awq": ("W4A8_AWQ",),
    "nvfp4": ("NVFP4",),
    "int8_wo": ("W8A16",),
    "int4_wo": ("W4A16",),
}
# SpeculativeDecodingMode in tensorrt_llm/models/modeling_utils.py, a flag that config.json has as its number.
_MODES = {
    None: 1,
    "draft_tokens_external": 2,
    "medusa": 4,
    "lookahead_decoding": 8,
    "explicit_draft_tokens": 16,
    "eagle": 32,
}
_CACHES = {"auto": (None, "NO_QUANT"), "fp8": ("FP8",), "int8": ("INT8",)}


@dataclass(frozen=True)
class EngineConfig:
    """The parts of an engine's config.json. `limits` has the build config's max_batch_size, max_num_tokens and so on.

    `paged_context_fmha`, `lora`, `context_logits` and `speculation` (the mode's number) are read as upstream's runtime
    does in cpp/tensorrt_llm/runtime/gptJsonConfig.cpp: a missing feature is off.
    """

    version: str
    limits: dict[str, int]
    quantization: str | None
    kv_cache_quantization: str | None
    tensor_parallel: int
    pipeline_parallel: int
    paged_context_fmha: bool
    lora: bool
    context_logits: bool
    speculation: int | str


def _read(out: Path) -> EngineConfig:
    try:
        read: dict[str, Any] = json.loads((out / "config.json").read_text(encoding="utf-8"))
        pretrained, build = read["pretrained_config"], read["build_config"]
        mapping, quantization = pretrained["mapping"], pretrained.get("quantization") or {}
        plugins = build.get("plugin_config") or {}
        return EngineConfig(
            version=str(read["version"]),
            limits={name: value for name, value in build.items() if name.startswith(("max_", "opt_")) and value},
            quantization=quantization.get("quant_algo"),
            kv_cache_quantization=quantization.get("kv_cache_quant_algo"),
            tensor_parallel=int(mapping["tp_size"]),
            pipeline_parallel=int(mapping["pp_size"]),
            paged_context_fmha=bool(plugins.get("use_paged_context_fmha")),
            lora=bool(plugins.get("lora_plugin")),
            context_logits=bool(build.get("gather_context_logits")),
            speculation=build.get("speculative_decoding_mode") or _MODES[None],
        )
    except FileNotFoundError as error:
        raise _MismatchError("it has no config.json") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _MismatchError(f"its config.json can't be read ({type(error).__name__}: {error})") from error


def check_engine(out: Path, recipe: Recipe, version: str | None, log: Path) -> EngineConfig:
    """Compare the engine in `out` with the resolved `recipe` and the expected `version`; return its config.

    Raises BuildError (`build_failed`), which names the `log`, if a rank is missing or the engine does not match.
    """
    try:
        return _checked(out, recipe, version)
    except _MismatchError as unlike:
        raise BuildError(
            f"trtllm-build wrote an engine that does not match the recipe: {unlike}; see {log}.", "build_failed"
        ) from unlike


class _MismatchError(Exception):
    """Yield the differences between an engine and its recipe."""


def _checked(out: Path, recipe: Recipe, version: str | None) -> EngineConfig:
    config = _read(out)
    for rank in range(recipe.world_size):
        path = out / f"rank{rank}.engine"
        if not path.is_file() or not path.stat().st_size:
            raise _MismatchError(f"rank {rank} of {recipe.world_size} is missing ({path.name})")
    if config.version != version:
        raise _MismatchError(f"it was built by TensorRT-LLM {config.version} instead of {version}")
    sizes = (config.tensor_parallel, config.pipeline_parallel)
    if sizes != (recipe.tensor_parallel, recipe.pipeline_parallel):
        raise _MismatchError(f"it has tensor_parallel {sizes[0]} and pipeline_parallel {sizes[1]}")
    if config.quantization not in _ALGORITHMS[recipe.quantization]:
        raise _MismatchError(f"its quantization is {config.quantization} instead of {recipe.quantization}")
    if config.kv_cache_quantization not in _CACHES[recipe.kv_cache_dtype]:
        raise _MismatchError(f"its KV cache is {config.kv_cache_quantization} instead of {recipe.kv_cache_dtype}")
    _check_limits(config, recipe)
    _check_requests(config, recipe)
    return config


def _check_requests(config: EngineConfig, recipe: Recipe) -> None:
    """Yield missing features. A missing paged context is only reported, since the engine serves without it."""
    for name, has, asked in (
        ("adapters", config.lora, recipe.lora is not None),
        ("logits of prompts", config.context_logits, recipe.gather_context_logits),
    ):
        if asked and not has:
            raise _MismatchError(f"it does not support {name}")
    speculation = recipe.speculation
    mode, length = (speculation.mode, speculation.max_draft_len) if speculation else (None, 0)
    if config.speculation not in (_MODES[mode], (mode or "none").upper()):
        raise _MismatchError(f"its speculative_decoding_mode is {config.speculation} instead of {mode or 'none'}")
    if config.limits.get("max_draft_len", 0) != length:
        raise _MismatchError(f"its max_draft_len is {config.limits.get('max_draft_len', 0)} instead of {length}")


def _check_limits(config: EngineConfig, recipe: Recipe) -> None:
    full_batch = recipe.limits.max_batch_size * (recipe.limits.max_seq_len or 0)
    for name in ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width"):
        asked, has = getattr(recipe.limits, name), config.limits.get(name, 0)
        # The builder adds drafts to some limits, and cuts max_num_tokens to the tokens of a full batch.
        if has < asked and not (name == "max_num_tokens" and has >= full_batch):
            raise _MismatchError(f"its {name} is {has} instead of {asked}")
