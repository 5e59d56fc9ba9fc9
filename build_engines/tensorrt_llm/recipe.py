"""The recipe: the build settings of a TensorRT engine, from flags or a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from build_engines.settings_file import read_settings_file
from inflight.common.schema.cli_options import nested_options
from inflight.common.suggestions import nearest

# Strict, since YAML's true would count as 1.
Count = Annotated[int, Field(gt=0, strict=True)]
Dtype = Literal["auto", "float16", "bfloat16", "float32"]
Quantization = Literal["none", "fp8", "int8_sq", "int4_awq", "w4a8_awq", "nvfp4", "int8_wo", "int4_wo"]
KvDtype = Literal["auto", "fp8", "int8"]
SpeculationMode = Literal["draft_tokens_external", "lookahead_decoding", "medusa", "explicit_draft_tokens", "eagle"]
PluginDtype = Literal["auto", "float16", "float32", "bfloat16", "disable"]
# The keys of LoraManager.LORA_MODULE_IDS in tensorrt_llm/lora_manager.py that apply to decoders.
LoraModule = Literal[
    "attn_qkv",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_dense",
    "mlp_h_to_4h",
    "mlp_4h_to_h",
    "mlp_gate",
    "mlp_gate_up",
    "mlp_router",
    "moe_h_to_4h",
    "moe_4h_to_h",
    "moe_gate",
    "moe_router",
]


class RecipeSection(BaseModel):
    """A section of the recipe. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Limits(RecipeSection):
    """Limits of the engine. Higher ones make it slower and larger."""

    max_batch_size: Count = 256
    """Maximum concurrent requests."""
    max_seq_len: Count | None = None
    """Maximum tokens of prompt and answer together. [default: the model's]"""
    max_input_len: Count | None = None
    """Maximum tokens of a prompt. [default: max_seq_len - 1, or max_num_tokens - 1 without chunked_context]"""
    max_num_tokens: Count = 8192
    """Maximum tokens per step, over all requests."""
    opt_num_tokens: Count | None = None
    """Tokens per step that kernels are tuned for. [default: max_batch_size * max_beam_width]"""
    max_beam_width: Count = 1
    """Maximum beams of one request."""


class Lora(RecipeSection):
    """LoRA adapters that requests can select."""

    directories: tuple[Path, ...] = ()
    """Hugging Face adapters; the config of the first one lists the modules that adapters change."""
    target_modules: tuple[LoraModule, ...] = ()
    """Modules that adapters change, if no adapter is given."""
    max_rank: Count = 64
    """Maximum rank of a LoRA adapter."""
    plugin: Literal["auto", "float16", "bfloat16", "float32"] = "auto"
    """Data type of the adapter kernels."""


class SpeculationOptions(RecipeSection):
    """Speculative decoding: several tokens of a request per step, from drafts."""

    mode: SpeculationMode
    """Speculative decoding: source of the drafts."""
    max_draft_len: Count
    """Maximum draft tokens per request and step."""
    model: Path | None = None
    """Draft model or heads to compile into the engine (medusa, eagle, explicit_draft_tokens)."""
    heads: Count = 4
    """Number of Medusa heads."""
    layers: Count | None = None
    """Layers of a Medusa head, or of EAGLE's draft tree. [default: 1, or 4 for EAGLE]"""
    max_non_leaves_per_layer: Count = 10
    """Maximum nodes with children in each layer of EAGLE's draft tree."""
    beams: Count = 5
    """Beams of the recurrent drafter (explicit_draft_tokens)."""


class Calibration(RecipeSection):
    """Calibration of a quantization: texts that determine the ranges of activations."""

    dataset: str = "cnn_dailymail"
    """Calibration texts: a dataset directory whose train split has a text column, or cnn_dailymail (downloaded)."""
    size: Count = 512
    """Number of texts; AWQ uses at most 32."""
    batch_size: Count = 1
    """Texts per batch."""
    max_seq_length: Count = 512
    """Maximum tokens of a text."""
    awq_block_size: Literal[64, 128] = 128
    """Number of consecutive weights that share a scale (AWQ)."""
    quantize_lm_head: bool = False
    """Quantize the LM head too (fp8)."""
    seed: Annotated[int, Field(ge=0, strict=True)] = 1234
    """Seed for the selection of texts."""


class Plugins(RecipeSection):
    """Plugins and fusions of TensorRT-LLM. The defaults are those of NVIDIA's recommended builds."""

    gemm: Literal["auto", "float16", "float32", "bfloat16", "fp8", "nvfp4", "disable"] = "auto"
    """GEMM plugin."""
    gpt_attention: PluginDtype = "auto"
    """Attention plugin; the paged KV cache needs it."""
    moe: PluginDtype = "auto"
    """Mixture-of-experts plugin."""
    nccl: PluginDtype = "auto"
    """NCCL plugin, for communication between GPUs."""
    gemm_swiglu: Literal["fp8", "disable"] = "disable"
    """Fuse GEMM and SwiGLU (fp8 on Hopper)."""
    low_latency_gemm: Literal["fp8", "disable"] = "disable"
    """GEMM for small batches (fp8)."""
    low_latency_gemm_swiglu: Literal["fp8", "disable"] = "disable"
    """GEMM with SwiGLU for small batches (fp8)."""
    gemm_allreduce: Literal["float16", "bfloat16", "disable"] = "disable"
    """Fuse GEMM and allreduce."""
    context_fmha: bool = True
    """Fused attention in the prompt phase."""
    remove_input_padding: bool = True
    """Pack prompts without padding; in-flight batching needs it."""
    tokens_per_block: Literal[16, 32, 64, 128] = 32
    """Tokens per block of the KV cache."""
    reduce_fusion: bool = False
    """Fuse allreduce, residual and norm (Llama, Gemma 2)."""
    user_buffer: bool = False
    """Allreduce without a copy (fp8 Llama, with reduce_fusion)."""
    norm_quant_fusion: bool = False
    """Fuse norm and quantization (nvfp4 Llama)."""
    use_fused_mlp: bool = True
    """Fuse the gate and up projections."""
    fuse_fp4_quant: bool = False
    """Quantize inside the attention kernel (nvfp4)."""
    pp_reduce_scatter: bool = False
    """Reduce-scatter in pipelines (Mixtral)."""


class Recipe(RecipeSection):
    """All build settings of an engine. The defaults suit serving."""

    dtype: Dtype = "auto"
    """Type of weights that are not quantized and of activations; auto: the checkpoint's, or float16 for float32."""
    quantization: Quantization = "none"
    """Quantization of the weights; fp8, int8_sq, w4a8_awq and nvfp4 also quantize activations."""
    kv_cache_dtype: KvDtype = "auto"
    """Type of the KV cache; auto: dtype."""
    tensor_parallel: Count = 1
    """Tensor parallel size: GPUs that share each layer."""
    pipeline_parallel: Count = 1
    """Pipeline parallel size: GPUs that each hold some of the layers."""
    limits: Limits = Limits()
    paged_context_fmha: bool | None = None
    """Let the prompt phase read from the paged KV cache, as kv_cache_reuse and chunked_context need. By default on, but
    off in float32, with an int8 KV cache, and with an fp8 one unless quantization is fp8, w4a8_awq or nvfp4."""
    fp8_context_fmha: bool | None = None
    """Compute the attention of prompts in fp8. By default on if quantization supports it and the KV cache is fp8."""
    kv_cache_reuse: bool | None = None
    """Reuse the KV cache of known prefixes, unless the deployment turns it off. By default as paged_context_fmha."""
    chunked_context: bool | None = None
    """Compute long prompts in chunks, unless the deployment turns it off. By default as paged_context_fmha."""
    multiple_profiles: bool = False
    """Tune kernels for several step sizes: a longer build, a faster engine."""
    gather_context_logits: bool = False
    """Let requests ask for the logits of their prompt."""
    gather_generation_logits: bool = False
    """Let requests ask for the logits of their answer."""
    logits_dtype: Literal["float16", "float32"] | None = None
    """Type of logits. [default: the model family's]"""
    lora: Lora | None = None
    speculation: SpeculationOptions | None = None
    calibration: Calibration = Calibration()
    plugins: Plugins = Plugins()
    weight_streaming: bool = False
    """Stream weights from host memory to the GPU; plugins.gemm auto then means disable."""
    fast_build: bool = False
    """Build faster; the engine is a little slower."""
    workers: Count = 1
    """Number of GPUs that build in parallel, one rank each."""
    log_level: Literal["error", "warning", "info", "verbose", "debug"] = "info"
    """Log level of trtllm-build."""

    @property
    def world_size(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def needs_calibration(self) -> bool:
        """Whether the quantization reads calibration texts; weight-only quantization does not."""
        return self.quantization not in ("none", "int8_wo", "int4_wo") or self.kv_cache_dtype != "auto"


def read_recipe(path: Path | None, flags: Mapping[str, Any]) -> Recipe:
    """Return the recipe of the file `path`, overridden by `flags`, whose keys are dotted ("limits.max_batch_size").

    Raises BuildError (`invalid_parameter`), which names the field and suggests similar names for an unknown one.
    """
    return read_settings_file(
        Recipe,
        path,
        flags.items(),
        source="the recipe",
        noun="field",
        form=", and a recipe is a mapping of fields to values",
        advice=_nearest,
    )


def _nearest(names: list[str]) -> str:
    fields = [".".join(option.path) for option in nested_options(Recipe)]
    last_parts = [name.rpartition(".")[2] for name in fields]
    for candidates, name in ((fields, ".".join(names)), (last_parts, names[-1])):
        if (close := nearest(name, candidates, cutoff=0.75)) is not None:
            return f"did you mean {fields[candidates.index(close)]}?"
    return f"its fields are {', '.join(Recipe.model_fields)}."
