"""The recipe: what a user decides about a TensorRT engine, as flags or a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

# Strict, since a YAML true would count as 1.
Count = Annotated[int, Field(gt=0, strict=True)]
Dtype = Literal["auto", "float16", "bfloat16", "float32"]
Quantization = Literal["none", "fp8", "int8_sq", "int4_awq", "w4a8_awq", "nvfp4", "int8_wo", "int4_wo"]
KvDtype = Literal["auto", "fp8", "int8"]
SpeculationMode = Literal["draft_tokens_external", "lookahead_decoding", "medusa", "explicit_draft_tokens", "eagle"]
PluginDtype = Literal["auto", "float16", "float32", "bfloat16", "disable"]
# The keys of LoraManager.LORA_MODULE_IDS in tensorrt_llm/lora_manager.py, of what a decoder has.
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
    """A part of the recipe; a key that it doesn't have is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Limits(RecipeSection):
    """What the engine is made for; more makes it slower and larger."""

    max_batch_size: Count = 256
    """Requests that run at once."""
    max_seq_len: Count | None = None
    """Tokens of prompt and answer together. Without it, what the model knows."""
    max_input_len: Count | None = None
    """Tokens of a prompt. Without it, all but one of max_seq_len, or of max_num_tokens without chunked_context."""
    max_num_tokens: Count = 8192
    """Tokens that one step computes, over all requests."""
    opt_num_tokens: Count | None = None
    """Tokens of one step that the kernels are chosen for. Without it, max_batch_size times max_beam_width."""
    max_beam_width: Count = 1
    """Beams of one request."""


class Lora(RecipeSection):
    """Adapters that requests can bring."""

    directories: tuple[Path, ...] = ()
    """Hugging Face adapters; the first one's config says which modules they change."""
    target_modules: tuple[LoraModule, ...] = ()
    """Modules that adapters change, where no adapter says it."""
    max_rank: Count = 64
    """The highest rank of an adapter."""
    plugin: Literal["auto", "float16", "bfloat16", "float32"] = "auto"
    """The type that adapters are computed in."""


class SpeculationOptions(RecipeSection):
    """Several tokens of a request in one step, from drafts."""

    mode: SpeculationMode
    """Where drafts come from."""
    max_draft_len: Count
    """Draft tokens of one request in one step."""
    model: Path | None = None
    """The drafting model or heads, for medusa, eagle and explicit_draft_tokens."""
    heads: Count = 4
    """Medusa heads."""
    layers: Count | None = None
    """Layers of a Medusa head (1), or of EAGLE's tree of choices (4)."""
    max_non_leaves_per_layer: Count = 10
    """Nodes of EAGLE's tree that go on, on each layer."""
    beams: Count = 5
    """Beams of the recurrent drafter (explicit_draft_tokens)."""


class Calibration(RecipeSection):
    """Texts that the model reads while it is quantized, to see how large its numbers get."""

    dataset: str = "cnn_dailymail"
    """A directory with a train split that has a text column, or cnn_dailymail, which is fetched from the hub."""
    size: Count = 512
    """Texts; AWQ takes 32 at most."""
    batch_size: Count = 1
    """Texts at once."""
    max_seq_length: Count = 512
    """Tokens of a text."""
    awq_block_size: Literal[64, 128] = 128
    """Weights in a row that share a scale, for AWQ."""
    quantize_lm_head: bool = False
    """Whether the last matrix is quantized too, with fp8."""
    seed: Annotated[int, Field(ge=0, strict=True)] = 1234
    """For drawing texts."""


class Plugins(RecipeSection):
    """NVIDIA's hand-written kernels and fusions; the defaults are those of the recommended builds."""

    gemm: Literal["auto", "float16", "float32", "bfloat16", "fp8", "nvfp4", "disable"] = "auto"
    """Matrix products."""
    gpt_attention: PluginDtype = "auto"
    """Attention; without it there is no paged KV cache."""
    moe: PluginDtype = "auto"
    """Mixtures of experts."""
    nccl: PluginDtype = "auto"
    """Messages between GPUs."""
    gemm_swiglu: Literal["fp8", "disable"] = "disable"
    """Matrix product and SwiGLU in one kernel (fp8 on Hopper)."""
    low_latency_gemm: Literal["fp8", "disable"] = "disable"
    """Matrix products of small batches (fp8)."""
    low_latency_gemm_swiglu: Literal["fp8", "disable"] = "disable"
    """The same with SwiGLU."""
    gemm_allreduce: Literal["float16", "bfloat16", "disable"] = "disable"
    """Matrix product and its sum over GPUs in one kernel."""
    context_fmha: bool = True
    """Fused attention of prompts."""
    remove_input_padding: bool = True
    """Prompts packed without padding, which in-flight batching takes."""
    tokens_per_block: Literal[16, 32, 64, 128] = 32
    """Tokens of one block of the KV cache."""
    reduce_fusion: bool = False
    """Sum over GPUs, residual and norm in one kernel (Llama, Gemma 2)."""
    user_buffer: bool = False
    """Sums over GPUs without a copy (fp8 Llama, with reduce_fusion)."""
    norm_quant_fusion: bool = False
    """Norm and quantization in one kernel (nvfp4 Llama)."""
    use_fused_mlp: bool = True
    """Gate and up projection in one product."""
    fuse_fp4_quant: bool = False
    """Quantization inside the attention kernel (nvfp4)."""
    pp_reduce_scatter: bool = False
    """For pipelines of Mixtral."""


class Recipe(RecipeSection):
    """All that shapes an engine. What isn't said has a default that suits serving."""

    dtype: Dtype = "auto"
    """Of weights that aren't quantized, and of what is computed; auto takes the checkpoint's, float16 for float32."""
    quantization: Quantization = "none"
    """Of the weights, and with fp8, int8_sq, w4a8_awq and nvfp4 of what they are multiplied with."""
    kv_cache_dtype: KvDtype = "auto"
    """Of the KV cache; auto takes dtype."""
    tensor_parallel: Count = 1
    """GPUs that share each layer."""
    pipeline_parallel: Count = 1
    """GPUs that each hold a part of the layers."""
    limits: Limits = Limits()
    paged_context_fmha: bool | None = None
    """Prompts are read from the paged KV cache, which kv_cache_reuse and chunked_context take. Without it, where the KV
    cache allows it: not in float32, not with int8, and with fp8 only where quantization is fp8, w4a8_awq or nvfp4."""
    fp8_context_fmha: bool | None = None
    """Attention of prompts in fp8. Without it, where quantization allows it and the KV cache is fp8."""
    kv_cache_reuse: bool | None = None
    """A prefix seen before is not computed again, by default of the deployment. Without it, as paged_context_fmha."""
    chunked_context: bool | None = None
    """Long prompts are computed in chunks between the steps of others, by default of the deployment. Without it, as
    paged_context_fmha."""
    multiple_profiles: bool = False
    """Kernels chosen for several sizes of a step: a longer build, a faster engine."""
    gather_context_logits: bool = False
    """Requests can have the logits of their prompt."""
    gather_generation_logits: bool = False
    """Requests can have the logits of their answer."""
    logits_dtype: Literal["float16", "float32"] | None = None
    """Of logits; without it, what the model's family has."""
    lora: Lora | None = None
    speculation: SpeculationOptions | None = None
    calibration: Calibration = Calibration()
    plugins: Plugins = Plugins()
    weight_streaming: bool = False
    """Weights may lie in the machine's memory and stream to the GPU; plugins.gemm auto is disable then."""
    fast_build: bool = False
    """Build sooner, run a little slower."""
    workers: Count = 1
    """GPUs that build at once, one rank each."""
    log_level: Literal["error", "warning", "info", "verbose", "debug"] = "info"
    """How much trtllm-build writes into the log."""

    @property
    def world_size(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def needs_calibration(self) -> bool:
        """Whether texts are read to quantize; weight-only quantization looks at the weights alone."""
        return self.quantization not in ("none", "int8_wo", "int4_wo") or self.kv_cache_dtype != "auto"
