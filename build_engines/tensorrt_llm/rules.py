"""What of a settled recipe can't be built, found before hours are spent: by itself, of this model, on this machine.

Each rule yields a sentence; the first one is told. Where upstream has the check, it fails late: in
tensorrt_llm/commands/build.py and builder.py after the conversion, in plugin.py on the GPU, or at serving.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.model_facts import ModelFacts
from build_engines.tensorrt_llm.capabilities import Architecture
from build_engines.tensorrt_llm.recipe import Recipe
from build_engines.tensorrt_llm.settle import FP8_PRODUCTS


def check_recipe(recipe: Recipe) -> None:
    """Raise BuildError (`invalid_parameter`) for fields that exclude each other."""
    for rule in (_limits, _context, _types, _plugins, _adapters):
        _refuse(rule(recipe))


def check_model(recipe: Recipe, architecture: Architecture, facts: ModelFacts) -> None:
    """Raise BuildError (`invalid_parameter`) for what this model's sizes or family exclude."""
    _refuse(_sizes(recipe, facts))
    _refuse(_family(recipe, architecture))


def check_path(recipe: Recipe, architecture: Architecture, directory: Path) -> None:
    """Raise BuildError (`invalid_parameter`) for a path that quantize.py would misread.

    It takes a checkpoint for an MPT or a VILA by the letters of its path (quantize_by_modelopt.py, get_hf_config).
    """
    if not recipe.needs_calibration:
        return
    path = str(directory.resolve())
    for letters, name in _MISREAD.items():
        if letters in path and name not in architecture.name.lower():
            raise BuildError(
                f"quantize.py takes a checkpoint with {letters!r} in its path for another model, and {path} has it; "
                "give the checkpoint another path.",
                "invalid_parameter",
            )


_MISREAD = {"mpt": "mpt", "vila": "vila", "llava-onevision-qwen2": "llava"}


def _refuse(sentences: Iterator[str]) -> None:
    for sentence in sentences:
        raise BuildError(sentence, "invalid_parameter")


def _limits(recipe: Recipe) -> Iterator[str]:
    limits = recipe.limits
    assert limits.max_seq_len is not None
    assert limits.max_input_len is not None
    if limits.max_input_len >= limits.max_seq_len:
        yield (
            f"limits.max_input_len {limits.max_input_len} leaves no token for the answer within limits.max_seq_len "
            f"{limits.max_seq_len}; lower it."
        )
    if not recipe.chunked_context and limits.max_input_len > limits.max_num_tokens:
        yield (
            f"Without chunked_context a step must hold a whole prompt, and limits.max_input_len {limits.max_input_len} "
            f"is more than limits.max_num_tokens {limits.max_num_tokens}; raise the one or lower the other."
        )
    if limits.max_num_tokens < limits.max_batch_size * limits.max_beam_width:
        yield (
            f"limits.max_num_tokens {limits.max_num_tokens} is less than a token for each of "
            f"{limits.max_batch_size} requests with {limits.max_beam_width} beams; raise it or lower "
            "limits.max_batch_size."
        )
    if limits.max_num_tokens < recipe.plugins.tokens_per_block:
        yield (
            f"limits.max_num_tokens {limits.max_num_tokens} is less than plugins.tokens_per_block "
            f"{recipe.plugins.tokens_per_block}, the smallest chunk of a prompt; raise it."
        )
    if limits.opt_num_tokens is not None and limits.opt_num_tokens > limits.max_num_tokens:
        yield (
            f"limits.opt_num_tokens {limits.opt_num_tokens} is more than limits.max_num_tokens "
            f"{limits.max_num_tokens}; lower it."
        )
    if recipe.multiple_profiles and limits.opt_num_tokens is not None:
        yield "multiple_profiles and limits.opt_num_tokens exclude each other; leave one of them out."
    if recipe.workers > recipe.world_size:
        yield (
            f"workers {recipe.workers} is more than the {recipe.world_size} ranks of tensor_parallel times "
            "pipeline_parallel; lower it."
        )


def _context(recipe: Recipe) -> Iterator[str]:
    for name in ("kv_cache_reuse", "chunked_context"):
        if getattr(recipe, name) and not recipe.paged_context_fmha:
            yield f"{name} takes paged_context_fmha, which is off; switch that on or {name} off."
    if recipe.paged_context_fmha and not recipe.plugins.context_fmha:
        yield "paged_context_fmha takes plugins.context_fmha, which is off; switch both on or both off."
    if recipe.paged_context_fmha and recipe.kv_cache_dtype == "int8":
        yield "paged_context_fmha doesn't work with kv_cache_dtype int8; switch it off, or take fp8 or auto."
    products = recipe.quantization in FP8_PRODUCTS
    if recipe.paged_context_fmha and recipe.kv_cache_dtype == "fp8" and not products:
        yield (
            f"paged_context_fmha with kv_cache_dtype fp8 takes quantization {' or '.join(FP8_PRODUCTS)}, not "
            f"{recipe.quantization}; switch it off, or quantize."
        )
    if recipe.fp8_context_fmha and recipe.quantization != "fp8":
        yield f"fp8_context_fmha takes quantization fp8, not {recipe.quantization}; leave it out."


def _types(recipe: Recipe) -> Iterator[str]:
    if recipe.quantization != "none" and recipe.dtype == "float32":
        yield f"quantization {recipe.quantization} takes dtype float16 or bfloat16, not float32; choose one of them."
    if recipe.calibration.quantize_lm_head and recipe.quantization != "fp8":
        yield f"calibration.quantize_lm_head takes quantization fp8, not {recipe.quantization}; leave it out."
    speculation = recipe.speculation
    if recipe.gather_context_logits and speculation is not None:
        yield "gather_context_logits and speculation exclude each other; leave one of them out."
    if speculation is None:
        return
    if recipe.limits.max_beam_width > 1:
        yield (f"speculation takes limits.max_beam_width 1, not {recipe.limits.max_beam_width}; leave one of them out.")
    loads = speculation.mode in ("medusa", "eagle", "explicit_draft_tokens")
    if loads and speculation.model is None:
        yield f"speculation.mode {speculation.mode} takes speculation.model, the drafting model's directory; add it."
    if loads and speculation.model is not None and not (speculation.model / "config.json").is_file():
        yield f"speculation.model {speculation.model} holds no config.json; check the path."
    if not loads and speculation.model is not None:
        yield (
            f"speculation.mode {speculation.mode} compiles no drafting model into the engine; leave speculation.model "
            "out, and serve the other engine with --draft-engine."
        )
    if speculation.mode == "explicit_draft_tokens" and speculation.max_draft_len % speculation.beams:
        yield (
            f"speculation.max_draft_len {speculation.max_draft_len} is no multiple of speculation.beams "
            f"{speculation.beams}, and each beam drafts as many tokens; change one of them."
        )


def _plugins(recipe: Recipe) -> Iterator[str]:
    plugins, quantization = recipe.plugins, recipe.quantization
    if plugins.gpt_attention == "disable":
        yield "In-flight batching takes the attention plugin; leave plugins.gpt_attention out."
    if not plugins.remove_input_padding:
        yield "In-flight batching takes packed prompts; leave plugins.remove_input_padding out."
    if plugins.gemm in FP8_PRODUCTS and plugins.gemm != quantization:
        yield f"plugins.gemm {plugins.gemm} takes quantization {plugins.gemm}, not {quantization}; leave it out."
    for name, needed in _NEEDED.items():
        if _on(getattr(plugins, name)) and quantization != needed:
            yield f"plugins.{name} takes quantization {needed}, not {quantization}; leave it out."
    if plugins.user_buffer and not plugins.reduce_fusion:
        yield "plugins.user_buffer takes plugins.reduce_fusion, which is off; switch that on too."
    if plugins.gemm_swiglu != "disable" and not plugins.use_fused_mlp:
        yield "plugins.gemm_swiglu takes plugins.use_fused_mlp, which is off; switch that on."
    for name in ("reduce_fusion", "user_buffer", "gemm_allreduce"):
        if _on(getattr(plugins, name)) and recipe.tensor_parallel == 1:
            yield f"plugins.{name} joins the sums over GPUs, and tensor_parallel is 1; leave it out."
    if plugins.pp_reduce_scatter and recipe.pipeline_parallel == 1:
        yield "plugins.pp_reduce_scatter is for pipelines, and pipeline_parallel is 1; leave it out."


# Plugins that are made for one quantization alone.
_NEEDED = {
    "gemm_swiglu": "fp8",
    "low_latency_gemm": "fp8",
    "low_latency_gemm_swiglu": "fp8",
    "user_buffer": "fp8",
    "fuse_fp4_quant": "nvfp4",
}


def _on(value: object) -> bool:
    return value not in (False, "disable")


def _adapters(recipe: Recipe) -> Iterator[str]:
    lora = recipe.lora
    if lora is None:
        return
    if not lora.directories and not lora.target_modules:
        yield "lora says neither lora.directories nor lora.target_modules, so it changes nothing; add one of them."
    for directory in lora.directories:
        if not (directory / "adapter_config.json").is_file():
            yield f"lora.directories names {directory}, which holds no adapter_config.json; check the path."
    if lora.plugin not in ("auto", recipe.dtype):
        yield f"lora.plugin {lora.plugin} is not the engine's dtype {recipe.dtype}; leave it at auto."


def _sizes(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
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


# What each converter of examples/{medusa,eagle,redrafter} reads.
DRAFTING = {
    "medusa": ("LlamaForCausalLM", "MixtralForCausalLM", "Qwen2ForCausalLM"),
    "eagle": ("LlamaForCausalLM",),
    "explicit_draft_tokens": ("LlamaForCausalLM",),
}
_DRAFTING_QUANTIZATIONS = {
    "medusa": ("none", "int8_wo", "int4_wo"),
    "eagle": ("none", "int8_wo", "int4_wo"),
    "explicit_draft_tokens": ("none",),
}


def _family(recipe: Recipe, architecture: Architecture) -> Iterator[str]:
    name = architecture.name
    if recipe.pipeline_parallel > 1 and not architecture.family.pipeline:
        yield f"{name} can't be split by layers; leave pipeline_parallel at 1."
    if recipe.plugins.user_buffer and name != "LlamaForCausalLM":
        yield f"plugins.user_buffer is for LlamaForCausalLM, not {name}; leave it out."
    if recipe.plugins.pp_reduce_scatter and name != "MixtralForCausalLM":
        yield f"plugins.pp_reduce_scatter is for MixtralForCausalLM, not {name}; leave it out."
    if recipe.speculation is None or recipe.speculation.mode not in DRAFTING:
        return
    mode = recipe.speculation.mode
    if name not in DRAFTING[mode]:
        yield f"speculation.mode {mode} is for {', '.join(DRAFTING[mode])}, not {name}; choose another mode."
    quantizations = _DRAFTING_QUANTIZATIONS[mode]
    if recipe.quantization not in quantizations or recipe.kv_cache_dtype != "auto":
        yield (
            f"speculation.mode {mode} is converted with quantization {', '.join(quantizations)} and kv_cache_dtype "
            f"auto alone, not with {recipe.quantization} and {recipe.kv_cache_dtype}; choose one of those."
        )
    if mode != "medusa" and recipe.pipeline_parallel > 1:
        yield f"speculation.mode {mode} can't be split by layers; leave pipeline_parallel at 1."
