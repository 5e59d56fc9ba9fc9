"""Rules that find conflicts in a resolved recipe before hours are spent on a build.

Each rule yields a sentence; the first one becomes the error. Upstream's own checks fail late or only warn: in
tensorrt_llm/commands/build.py and builder.py after the conversion, in plugin.py on the GPU, or when serving.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from build_engines.capabilities.tensorrt_llm import WEIGHT_ONLY, Architecture
from build_engines.checkpoints.model_facts import ModelFacts
from build_engines.errors import invalid
from build_engines.tensorrt_llm.recipe import Recipe, SpeculationOptions
from build_engines.tensorrt_llm.resolve_defaults import FP8_PRODUCTS

# builder.py ignores these for other models, with a warning.
_FUSIONS = {
    "reduce_fusion": ("LlamaForCausalLM", "Gemma2ForCausalLM"),
    "norm_quant_fusion": ("LlamaForCausalLM",),
    "user_buffer": ("LlamaForCausalLM",),
    "pp_reduce_scatter": ("MixtralForCausalLM",),
}
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
_PAGED_MODES = ("draft_tokens_external", "eagle")
# Asserted in builder.py, the second in examples/eagle/convert_checkpoint.py too.
_EAGLE_REQUESTS = 512
_EAGLE_DRAFTS = 256


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


_FP8 = f"{', '.join(FP8_PRODUCTS[:-1])} or {FP8_PRODUCTS[-1]}"
# Plugins for a single quantization.
_NEEDED = {
    "gemm_swiglu": "fp8",
    "low_latency_gemm": "fp8",
    "low_latency_gemm_swiglu": "fp8",
    "user_buffer": "fp8",
    "norm_quant_fusion": "nvfp4",
    "fuse_fp4_quant": "nvfp4",
}
# Their weights are inside plugins, which do not stream (docs/source/legacy/advanced/weight-streaming.md).
_IN_PLUGINS = ("int8_sq", "int4_awq", "w4a8_awq", *WEIGHT_ONLY)
_PRODUCTS = ("gemm", "gemm_swiglu", "low_latency_gemm", "low_latency_gemm_swiglu", "gemm_allreduce")


def check_recipe(recipe: Recipe) -> None:
    """Raise BuildError (`invalid_parameter`) for fields that conflict."""
    _refuse(rule(recipe) for rule in (_limits, _context, _types, _speculation, _plugins, _streaming, _adapters))


def check_model(recipe: Recipe, architecture: Architecture, facts: ModelFacts) -> None:
    """Raise BuildError (`invalid_parameter`) for settings that this model does not support."""
    _refuse([sizes(recipe, facts), family(recipe, architecture), _drafting(recipe, architecture)])


def _refuse(rules: Iterable[Iterator[str]]) -> None:
    for sentence in chain.from_iterable(rules):
        raise invalid(sentence)


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
            f"is more than limits.max_num_tokens {limits.max_num_tokens}; lower the first or raise the second."
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
    paged, cache = recipe.paged_context_fmha, recipe.kv_cache_dtype
    products = recipe.quantization in FP8_PRODUCTS
    for name in ("kv_cache_reuse", "chunked_context"):
        if getattr(recipe, name) and not paged:
            yield f"{name} needs paged_context_fmha; enable that, or disable {name}."
    for name, asked in (("paged_context_fmha", paged), ("fp8_context_fmha", recipe.fp8_context_fmha)):
        if asked and not recipe.plugins.context_fmha:
            yield f"{name} needs plugins.context_fmha; enable that, or disable {name}."
    if paged and recipe.dtype == "float32":
        yield "paged_context_fmha needs dtype float16 or bfloat16, not float32; disable it, or choose one of them."
    if paged and cache == "int8":
        yield "paged_context_fmha does not support kv_cache_dtype int8; disable it, or choose fp8 or auto."
    if paged and cache == "fp8" and not products:
        yield (
            f"paged_context_fmha with kv_cache_dtype fp8 needs quantization {_FP8}, not "
            f"{recipe.quantization}; disable it, or quantize."
        )
    if recipe.fp8_context_fmha and not products:
        yield (f"fp8_context_fmha needs quantization {_FP8}, not {recipe.quantization}; leave it out.")
    if paged and products and bool(recipe.fp8_context_fmha) != (cache == "fp8"):
        yield (
            f"With paged_context_fmha, fp8_context_fmha is on if and only if kv_cache_dtype is fp8, but it is {cache}; "
            "leave fp8_context_fmha out."
        )


def _types(recipe: Recipe) -> Iterator[str]:
    if recipe.quantization != "none" and recipe.dtype == "float32":
        yield f"quantization {recipe.quantization} needs dtype float16 or bfloat16, not float32; choose one of them."
    if recipe.calibration.quantize_lm_head and recipe.quantization != "fp8":
        yield f"calibration.quantize_lm_head needs quantization fp8, not {recipe.quantization}; leave it out."


def _plugins(recipe: Recipe) -> Iterator[str]:
    plugins, quantization = recipe.plugins, recipe.quantization
    if plugins.gpt_attention == "disable":
        yield "In-flight batching needs the attention plugin; leave out plugins.gpt_attention."
    if not plugins.remove_input_padding:
        yield "In-flight batching needs packed prompts; leave out plugins.remove_input_padding."
    if plugins.gemm in ("fp8", "nvfp4") and plugins.gemm != quantization:
        yield f"plugins.gemm {plugins.gemm} needs quantization {plugins.gemm}, not {quantization}; leave it out."
    for name, needed in _NEEDED.items():
        if _on(getattr(plugins, name)) and quantization != needed:
            yield f"plugins.{name} needs quantization {needed}, not {quantization}; leave it out."
    if plugins.user_buffer and not plugins.reduce_fusion:
        yield "plugins.user_buffer needs plugins.reduce_fusion; enable that too."
    if plugins.norm_quant_fusion and plugins.reduce_fusion:
        yield "plugins.norm_quant_fusion and plugins.reduce_fusion exclude each other; leave one of them out."
    if plugins.gemm_swiglu != "disable" and not plugins.use_fused_mlp:
        yield "plugins.gemm_swiglu needs plugins.use_fused_mlp; enable that."
    for name in ("reduce_fusion", "user_buffer", "gemm_allreduce"):
        if _on(getattr(plugins, name)) and recipe.tensor_parallel == 1:
            yield f"plugins.{name} needs several GPUs, but tensor_parallel is 1; leave it out."
    if plugins.pp_reduce_scatter and recipe.pipeline_parallel == 1:
        yield "plugins.pp_reduce_scatter needs a pipeline, but pipeline_parallel is 1; leave it out."


def _on(value: object) -> bool:
    return value not in (False, "disable")


def _streaming(recipe: Recipe) -> Iterator[str]:
    if not recipe.weight_streaming:
        return
    if recipe.quantization in _IN_PLUGINS:
        yield (
            f"weight_streaming does not support quantization {recipe.quantization}, whose weights are in a plugin; "
            "choose none, fp8 or nvfp4."
        )
    for name in _PRODUCTS:
        if _on(getattr(recipe.plugins, name)):
            yield (
                f"weight_streaming does not support plugins.{name}, which is {getattr(recipe.plugins, name)}; leave "
                "it out."
            )


def _adapters(recipe: Recipe) -> Iterator[str]:
    lora = recipe.lora
    if lora is None:
        return
    if not lora.directories and not lora.target_modules:
        yield "lora has neither lora.directories nor lora.target_modules; add one of them."
    for directory in lora.directories:
        if not (directory / "adapter_config.json").is_file():
            yield f"lora.directories names {directory}, which has no adapter_config.json; check the path."
    if lora.plugin not in ("auto", recipe.dtype):
        yield f"lora.plugin {lora.plugin} differs from the engine's dtype {recipe.dtype}; leave it at auto."


def _speculation(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for each conflict within the recipe."""
    if recipe.speculation is None:
        return
    if recipe.gather_context_logits:
        yield "gather_context_logits and speculation exclude each other; leave one of them out."
    if recipe.limits.max_beam_width > 1:
        yield f"speculation needs limits.max_beam_width 1, not {recipe.limits.max_beam_width}; leave one of them out."
    mode = recipe.speculation.mode
    if mode in _PAGED_MODES and not recipe.paged_context_fmha:
        yield (
            f"speculation.mode {mode} takes paged_context_fmha, which is off; switch it on, with a kv_cache_dtype and "
            "quantization that allow it, or choose another mode."
        )
    yield from _drafting_model(recipe.speculation)
    yield from _draft_lengths(recipe, recipe.speculation)


def _drafting_model(options: SpeculationOptions) -> Iterator[str]:
    loads = options.mode in DRAFTING
    if loads and options.model is None:
        yield f"speculation.mode {options.mode} needs speculation.model, the directory of the draft model; add it."
    if loads and options.model is not None and not (options.model / "config.json").is_file():
        yield f"speculation.model {options.model} has no config.json; check the path."
    if not loads and options.model is not None:
        yield (
            f"speculation.mode {options.mode} compiles no drafting model into the engine; leave speculation.model out, "
            "and serve the other engine with --draft-engine."
        )


def _draft_lengths(recipe: Recipe, options: SpeculationOptions) -> Iterator[str]:
    if options.mode == "explicit_draft_tokens" and options.max_draft_len % options.beams:
        yield (
            f"speculation.max_draft_len {options.max_draft_len} is no multiple of speculation.beams {options.beams}, "
            "and each beam drafts as many tokens; change one of them."
        )
    if options.mode == "eagle" and options.max_draft_len > _EAGLE_DRAFTS:
        yield f"speculation.max_draft_len {options.max_draft_len} is more than the {_EAGLE_DRAFTS} of eagle; lower it."
    if options.mode == "eagle" and recipe.limits.max_batch_size > _EAGLE_REQUESTS:
        yield (
            f"limits.max_batch_size {recipe.limits.max_batch_size} is more than the {_EAGLE_REQUESTS} requests of "
            "speculation.mode eagle; lower it."
        )


def _drafting(recipe: Recipe, architecture: Architecture) -> Iterator[str]:
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
