"""The arguments of `tensorrt_llm.LLM` that a user sets for an engine of the LLM API; known ones are typed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from build_engines.errors import invalid
from build_engines.settings_file import parse_value, read_settings_file
from inflight.common.suggestions import nearest

# Strict, since YAML's true would count as 1.
Count = Annotated[int, Field(gt=0, strict=True)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class ArgumentsSection(BaseModel):
    """A section of the arguments; unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class KvCacheArguments(ArgumentsSection):
    """`KvCacheConfig`: the KV cache. Without `max_tokens`, its size is a fraction of the free memory."""

    enable_block_reuse: bool = True
    """Reuse the blocks of earlier prompts."""
    free_gpu_memory_fraction: Fraction = 0.9
    """Fraction of the GPU memory that is free after the model is loaded."""
    max_tokens: Count | None = None
    """Maximum tokens in the cache, if the fraction holds more."""
    tokens_per_block: Literal[8, 16, 32, 64, 128] = 32
    """Tokens per block."""
    host_cache_size: Count | None = None
    """Bytes of host memory for blocks that don't fit on the GPU."""
    max_attention_window: tuple[Count, ...] | None = None
    """Attention window of each layer in tokens; the pattern repeats over the layers."""
    enable_partial_reuse: bool = True
    """Reuse blocks that match only in their first tokens, too."""
    dtype: Literal["auto", "fp8"] = "auto"
    """Type of keys and values; auto: the checkpoint's."""


class LlmArguments(ArgumentsSection):
    """Arguments of `LLM` in TensorRT-LLM 1.2 and later, by their names there; all others belong under `extra`."""

    tensor_parallel_size: Count = 1
    """Tensor parallel size: GPUs that share each layer."""
    pipeline_parallel_size: Count = 1
    """Pipeline parallel size: groups of GPUs that share the layers."""
    max_batch_size: Count = 256
    """Maximum concurrent requests."""
    max_num_tokens: Count = 8192
    """Maximum tokens per step, over all requests."""
    max_seq_len: Annotated[int, Field(ge=2, strict=True)] | None = None
    """Maximum tokens of prompt and answer together, at least one of each. [default: the model's]"""
    max_beam_width: Count = 1
    """Beams per request; above 1, every request is a beam search of that width."""
    dtype: Literal["auto", "float16", "bfloat16", "float32"] = "auto"
    """Type of weights that are not quantized and of activations; auto: the checkpoint's."""
    kv_cache_config: KvCacheArguments = KvCacheArguments()
    guided_decoding_backend: Literal["xgrammar", "llguidance"] | None = "xgrammar"
    """Backend of guided decoding; null: requests with a guide are refused."""
    enable_chunked_prefill: bool = True
    """Compute long prompts in chunks; without it, prompts longer than max_num_tokens are refused."""
    sampler_type: Literal["auto", "TorchSampler", "TRTLLMSampler"] | None = None
    """Sampler; null: the one that supports all sampling parameters, if the installed version has it."""
    enable_lora: bool = False
    """Accept LoRA adapters (inflight serve --lora)."""
    lora_config: dict[str, Any] | None = None
    """Fields of `LoraConfig`: max_lora_rank, max_loras and others."""
    speculative_config: dict[str, Any] | None = None
    """Speculative decoding: the fields of the library's config; `decoding_type` names the method."""
    trust_remote_code: bool = False
    """Copy the checkpoint's code and let it run; also allow architectures that TensorRT-LLM doesn't list."""
    extra: dict[str, Any] = {}
    """Further arguments of `LLM`, passed unchanged."""

    @field_validator("speculative_config")
    @classmethod
    def _require_decoding_type(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and not isinstance(value.get("decoding_type"), str):
            raise ValueError("a mapping with a decoding_type (Eagle, MTP, NGram, DraftTarget and others)")
        drafted = None if value is None else value.get("max_draft_len")
        if drafted is not None and (not isinstance(drafted, int) or isinstance(drafted, bool) or drafted < 0):
            raise ValueError("a mapping whose max_draft_len is an integer of at least 0")
        return value

    @field_validator("extra")
    @classmethod
    def _reject_known_names(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if name in cls.model_fields:
                raise ValueError(f"a mapping without {name}, which is set outside extra")
            if name in ("model", "tokenizer", "backend"):
                raise ValueError(f"a mapping without {name}, which the engine sets")
        return value

    def keywords(self, max_seq_len: int) -> dict[str, Any]:
        """Return the arguments for `LLM`, without null and auto: older versions don't know all names."""
        arguments = self.model_dump(mode="json", exclude={"extra"}, exclude_none=True)
        cache = self.kv_cache_config
        arguments["max_seq_len"] = max_seq_len
        if cache.dtype == "auto":
            del arguments["kv_cache_config"]["dtype"]
        for switch in ("enable_lora", "trust_remote_code"):
            if not arguments[switch]:
                del arguments[switch]
        if self.max_beam_width > 1:
            # TensorRT-LLM 1.2 needs these for beam search (docs/source/features/sampling.md).
            arguments |= {"disable_overlap_scheduler": True, "cuda_graph_config": None}
        return arguments | self.extra


def read_arguments(path: Path | None, overrides: Iterable[str] = ()) -> LlmArguments:
    """Return the arguments in the file `path`, replaced by each `name=value` of `overrides`. Values are YAML.

    A dotted name sets a nested field: `kv_cache_config.max_tokens=65536`. Raises BuildError (`invalid_parameter`) with
    one sentence that names the field and suggests the nearest name for an unknown one.
    """
    return read_settings_file(
        LlmArguments,
        path,
        _pairs(overrides),
        source="the arguments",
        noun="argument",
        form="; write arguments by name",
        advice=_nearest,
    )


def _pairs(overrides: Iterable[str]) -> Iterator[tuple[str, Any]]:
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals or not name:
            raise invalid(f"{override!r} is not an argument; write name=value.")
        yield name, parse_value(name, value)


def _nearest(names: list[str]) -> str:
    part: type[BaseModel] = KvCacheArguments if len(names) > 1 else LlmArguments
    if (close := nearest(names[-1], part.model_fields)) is not None:
        return f"did you mean {'.'.join([*names[:-1], close])}?"
    return "put other arguments of tensorrt_llm.LLM under extra." if len(names) == 1 else "leave it out."
