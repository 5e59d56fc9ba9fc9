"""The user's arguments of `tensorrt_llm.LLM` for an engine of the LLM API; known ones are typed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

# Strict, since a YAML true would count as 1.
Count = Annotated[int, Field(gt=0, strict=True)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class ArgumentsSection(BaseModel):
    """A section of the arguments; unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class KvCacheArguments(ArgumentsSection):
    """`KvCacheConfig`: the KV cache. Without `max_tokens` it takes its fraction of the free memory."""

    enable_block_reuse: bool = True
    """Blocks of earlier prompts are not computed again."""
    free_gpu_memory_fraction: Fraction = 0.9
    """Of the GPU memory that is free once the model is loaded."""
    max_tokens: Count | None = None
    """The most tokens that it holds, where that is less."""
    tokens_per_block: Literal[8, 16, 32, 64, 128] = 32
    """Tokens of one block."""
    host_cache_size: Count | None = None
    """Bytes of host memory for blocks that the GPU has no room for."""
    max_attention_window: tuple[Count, ...] | None = None
    """Tokens that each layer looks back on, repeated over the layers."""
    enable_partial_reuse: bool = True
    """Blocks of which a beginning matches are reused too."""
    dtype: Literal["auto", "fp8"] = "auto"
    """Of keys and values; auto: as the checkpoint has it."""


class LlmArguments(ArgumentsSection):
    """Names are those of `LLM`, in TensorRT-LLM 1.2 and later; `extra` is for those that are not told here."""

    tensor_parallel_size: Count = 1
    """GPUs that share each layer."""
    pipeline_parallel_size: Count = 1
    """Groups of GPUs that share the layers."""
    max_batch_size: Count = 256
    """Requests that run at once."""
    max_num_tokens: Count = 8192
    """Tokens that one step computes, over all requests."""
    max_seq_len: Annotated[int, Field(ge=2, strict=True)] | None = None
    """Tokens of prompt and answer together, one of each at least. Without it, what the model knows."""
    max_beam_width: Count = 1
    """Beams of each request: with more than 1, every request is a beam search of that width."""
    dtype: Literal["auto", "float16", "bfloat16", "float32"] = "auto"
    """Of what is not quantized; auto: the checkpoint's."""
    kv_cache_config: KvCacheArguments = KvCacheArguments()
    guided_decoding_backend: Literal["xgrammar", "llguidance"] | None = "xgrammar"
    """What keeps answers to a guide; null: guides are refused."""
    enable_chunked_prefill: bool = True
    """Long prompts are computed in parts; without it, one that is longer than max_num_tokens is refused."""
    sampler_type: Literal["auto", "TorchSampler", "TRTLLMSampler"] | None = None
    """null: the one that ignores nothing a request asks for, where the version in use has it."""
    enable_lora: bool = False
    """Takes adapters (inflight serve --lora)."""
    lora_config: dict[str, Any] | None = None
    """`LoraConfig`: max_lora_rank, max_loras and others."""
    speculative_config: dict[str, Any] | None = None
    """One of the library's ways to speculate, which `decoding_type` names."""
    trust_remote_code: bool = False
    """Brings the checkpoint's own code along and lets it run; also allows an architecture that is not listed."""
    extra: dict[str, Any] = {}
    """Further arguments of `LLM`, handed on as they are."""

    @field_validator("speculative_config")
    @classmethod
    def _require_decoding_type(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and not isinstance(value.get("decoding_type"), str):
            raise ValueError("fields of its own with a decoding_type (Eagle, MTP, NGram, DraftTarget and others)")
        drafted = None if value is None else value.get("max_draft_len")
        if drafted is not None and (not isinstance(drafted, int) or isinstance(drafted, bool) or drafted < 0):
            raise ValueError("a max_draft_len that is a whole number of at least 0")
        return value

    @field_validator("extra")
    @classmethod
    def _reject_known_names(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if name in cls.model_fields:
                raise ValueError(f"names that have no field here, and {name} has one")
            if name in ("model", "tokenizer", "backend"):
                raise ValueError(f"names that the engine leaves open, and {name} is settled")
        return value

    def keywords(self, max_seq_len: int) -> dict[str, Any]:
        """The arguments of `LLM` that a version must know: what says nothing (null, auto) is left out."""
        said = self.model_dump(mode="json", exclude={"extra"}, exclude_none=True)
        cache = self.kv_cache_config
        said["max_seq_len"] = max_seq_len
        if cache.dtype == "auto":
            del said["kv_cache_config"]["dtype"]
        for switch in ("enable_lora", "trust_remote_code"):
            if not said[switch]:
                del said[switch]
        if self.max_beam_width > 1:
            # What 1.2 needs for a beam search (its docs/source/features/sampling.md).
            said |= {"disable_overlap_scheduler": True, "cuda_graph_config": None}
        return said | self.extra
