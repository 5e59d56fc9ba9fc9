"""The exact commands that build an engine: convert or quantize, then trtllm-build."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

from build_engines.capabilities.tensorrt_llm import QUANTIZE_SCRIPT, WEIGHT_ONLY, Architecture, ConverterFamily
from build_engines.tensorrt_llm.recipe import Plugins, Recipe, SpeculationOptions

Step = Literal["convert", "quantize", "build"]
_QFORMATS = {"none": "full_prec"}
_DRAFTING_SCRIPTS = {
    "medusa": "medusa/convert_checkpoint.py",
    "eagle": "eagle/convert_checkpoint.py",
    "explicit_draft_tokens": "redrafter/convert_checkpoint.py",
}
# The base model's name in examples/medusa/convert_checkpoint.py.
_MEDUSA_TYPES = {"LlamaForCausalLM": "llama", "MixtralForCausalLM": "mixtral", "Qwen2ForCausalLM": "qwen2"}


@dataclass(frozen=True)
class BuildPaths:
    """Paths as the programs see them: inside the container if they run in one.

    `model` is the Hugging Face checkpoint, `checkpoint` TensorRT-LLM's, `engine` the directory to serve.
    """

    model: PurePath
    checkpoint: PurePath
    engine: PurePath
    examples: PurePath
    python: tuple[str, ...] = ("python3",)


@dataclass(frozen=True)
class Command:
    """A program with its arguments, and environment variables in addition to those of all programs."""

    step: Step
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def shell(self) -> str:
        """Return the command as a shell line."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.arguments)])


def commands(recipe: Recipe, architecture: Architecture, paths: BuildPaths) -> tuple[Command, Command]:
    """Return the commands that compile the checkpoint; `recipe` is resolved, checked, and fits `architecture`."""
    return _to_checkpoint(recipe, architecture, paths), _build(recipe, paths)


def _to_checkpoint(recipe: Recipe, architecture: Architecture, places: BuildPaths) -> Command:
    if recipe.speculation is not None and recipe.speculation.mode in _DRAFTING_SCRIPTS:
        arguments = _convert_with_draft(recipe, recipe.speculation, architecture, places)
        return _python("convert", places, _DRAFTING_SCRIPTS[recipe.speculation.mode], arguments, architecture)
    if recipe.quantization in ("none", *WEIGHT_ONLY) and recipe.kv_cache_dtype == "auto":
        arguments = _convert(recipe, architecture.family, places)
        return _python("convert", places, architecture.family.script, arguments, architecture)
    return _python("quantize", places, QUANTIZE_SCRIPT, _quantize(recipe, places), architecture)


def _python(
    step: Step, places: BuildPaths, script: str, arguments: Iterator[str], architecture: Architecture
) -> Command:
    return Command(step, (*places.python, str(places.examples / script), *arguments), architecture.environment)


def _convert(recipe: Recipe, family: ConverterFamily, places: BuildPaths) -> Iterator[str]:
    if family.gemma_style:
        yield from ("--ckpt-type", "hf", "--model-dir", str(places.model))
        yield from ("--output-model-dir", str(places.checkpoint), "--dtype", recipe.dtype)
        yield from ("--world-size", str(recipe.tensor_parallel))
    else:
        yield from ("--model_dir", str(places.model), "--output_dir", str(places.checkpoint), "--dtype", recipe.dtype)
        yield from _parallel(recipe)
        yield from ("--workers", str(recipe.workers))
    yield from _weight_only(recipe)


def _parallel(recipe: Recipe) -> tuple[str, ...]:
    return ("--tp_size", str(recipe.tensor_parallel), "--pp_size", str(recipe.pipeline_parallel))


def _weight_only(recipe: Recipe) -> Iterator[str]:
    if recipe.quantization in WEIGHT_ONLY:
        yield from ("--use_weight_only", "--weight_only_precision", recipe.quantization.removesuffix("_wo"))


def _convert_with_draft(
    recipe: Recipe, speculation: SpeculationOptions, architecture: Architecture, places: BuildPaths
) -> Iterator[str]:
    yield from ("--model_dir", str(places.model), "--output_dir", str(places.checkpoint), "--dtype", recipe.dtype)
    if speculation.mode == "explicit_draft_tokens":
        yield from ("--tp_size", str(recipe.tensor_parallel), "--drafter_model_dir", str(speculation.model))
        yield from ("--redrafter_num_beams", str(speculation.beams))
        yield from ("--redrafter_draft_len_per_beam", str(speculation.max_draft_len // speculation.beams))
    else:
        yield from _parallel(recipe)
        yield from _weight_only(recipe)
    if speculation.mode == "medusa":
        yield from ("--medusa_model_dir", str(speculation.model), "--model_type", _MEDUSA_TYPES[architecture.name])
        yield from ("--num_medusa_heads", str(speculation.heads), "--num_medusa_layers", str(speculation.layers or 1))
        yield from ("--max_medusa_token_len", str(speculation.max_draft_len))
    if speculation.mode == "eagle":
        yield from ("--eagle_model_dir", str(speculation.model), "--max_draft_len", str(speculation.max_draft_len))
        yield from ("--num_eagle_layers", str(speculation.layers or 4))
        yield from ("--max_non_leaves_per_layer", str(speculation.max_non_leaves_per_layer))
    yield from ("--workers", str(recipe.workers))


def _quantize(recipe: Recipe, places: BuildPaths) -> Iterator[str]:
    calibration = recipe.calibration
    yield from ("--model_dir", str(places.model), "--output_dir", str(places.checkpoint), "--dtype", recipe.dtype)
    yield from ("--qformat", _QFORMATS.get(recipe.quantization, recipe.quantization))
    if recipe.kv_cache_dtype != "auto":
        yield from ("--kv_cache_dtype", recipe.kv_cache_dtype)
    yield from ("--calib_dataset", calibration.dataset, "--calib_size", str(calibration.size))
    yield from ("--batch_size", str(calibration.batch_size), "--calib_max_seq_length", str(calibration.max_seq_length))
    if "awq" in recipe.quantization:
        yield from ("--awq_block_size", str(calibration.awq_block_size))
    yield from ("--seed", str(calibration.seed))
    yield from _parallel(recipe)
    if calibration.quantize_lm_head:
        yield "--quantize_lm_head"


def _build(recipe: Recipe, places: BuildPaths) -> Command:
    return Command("build", ("trtllm-build", *_build_arguments(recipe, places)))


def _build_arguments(recipe: Recipe, places: BuildPaths) -> Iterator[str]:
    yield from ("--checkpoint_dir", str(places.checkpoint), "--output_dir", str(places.engine))
    # By default it is written to the program's current directory.
    yield from ("--output_timing_cache", str(places.checkpoint / "model.cache"))
    limits = recipe.limits
    for name in ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width"):
        yield from (f"--{name}", str(getattr(limits, name)))
    if limits.opt_num_tokens is not None:
        yield from ("--opt_num_tokens", str(limits.opt_num_tokens))
    # Passed even if it is the default, since defaults change between versions.
    yield from ("--kv_cache_type", "paged")
    yield from ("--use_paged_context_fmha", _switch(bool(recipe.paged_context_fmha)))
    yield from ("--use_fp8_context_fmha", _switch(bool(recipe.fp8_context_fmha)))
    yield from ("--multiple_profiles", _switch(recipe.multiple_profiles))
    yield from _plugins(recipe.plugins, recipe.quantization)
    yield from _requests(recipe)
    for name in ("weight_streaming", "fast_build"):
        if getattr(recipe, name):
            yield f"--{name}"
    yield from ("--workers", str(recipe.workers), "--log_level", recipe.log_level)


def _plugins(plugins: Plugins, quantization: str) -> Iterator[str]:
    # nvfp4 has a separate plugin, which trtllm-build uses if no other is given.
    if not (plugins.gemm == "auto" and quantization == "nvfp4"):
        yield from ("--gemm_plugin", plugins.gemm)
    for name in ("gpt_attention", "nccl", "moe"):
        yield from (f"--{name}_plugin", getattr(plugins, name))
    for name in ("gemm_swiglu", "low_latency_gemm", "low_latency_gemm_swiglu", "gemm_allreduce"):
        if getattr(plugins, name) != "disable":
            yield from (f"--{name}_plugin", getattr(plugins, name))
    for name in ("context_fmha", "remove_input_padding"):
        yield from (f"--{name}", _switch(getattr(plugins, name)))
    yield from ("--tokens_per_block", str(plugins.tokens_per_block))
    default = Plugins()
    for name in (
        "reduce_fusion",
        "user_buffer",
        "norm_quant_fusion",
        "use_fused_mlp",
        "fuse_fp4_quant",
        "pp_reduce_scatter",
    ):
        if getattr(plugins, name) != getattr(default, name):
            yield from (f"--{name}", _switch(getattr(plugins, name)))


def _requests(recipe: Recipe) -> Iterator[str]:
    """Return the arguments for LoRA, speculation and logits."""
    if recipe.lora is not None:
        yield from ("--lora_plugin", recipe.lora.plugin, "--max_lora_rank", str(recipe.lora.max_rank))
        if recipe.lora.directories:
            yield from ("--lora_dir", *map(str, recipe.lora.directories))
        if recipe.lora.target_modules:
            yield from ("--lora_target_modules", *recipe.lora.target_modules)
    if recipe.speculation is not None:
        yield from ("--speculative_decoding_mode", recipe.speculation.mode)
        yield from ("--max_draft_len", str(recipe.speculation.max_draft_len))
    for name in ("gather_context_logits", "gather_generation_logits"):
        if getattr(recipe, name):
            yield f"--{name}"
    if recipe.logits_dtype is not None:
        yield from ("--logits_dtype", recipe.logits_dtype)


def _switch(on: bool) -> str:
    return "enable" if on else "disable"
