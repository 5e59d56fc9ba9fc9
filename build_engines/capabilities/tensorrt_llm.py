"""The architectures that a release line of TensorRT-LLM compiles, with which script, and in which precisions.

Sources for 1.2 in NVIDIA/TensorRT-LLM: for weight-only quantization, types and pipelines each family's
convert_checkpoint.py and network (tensorrt_llm/models); for quantize.py docs/source/legacy/reference/precision.md and
the README files of examples/models; for architectures without an engine support-matrix.md in the same directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from build_engines.capabilities.llmapi import LATER_ARCHITECTURES, SUPPORTED_ARCHITECTURES
from build_engines.capabilities.quantization import read_quantization
from build_engines.containers import ENGINE_LINE
from build_engines.errors import BuildError, unsupported

QUANTIZE_SCRIPT = "quantization/quantize.py"
WEIGHT_ONLY = ("int8_wo", "int4_wo")
MIN_CAPABILITY = {"fp8": (8, 9), "w4a8_awq": (8, 9), "nvfp4": (10, 0)}
"""The lowest compute capability that supports a precision of weights or KV cache; absent ones have no minimum."""
# builder.py refuses integer precisions from 10.0 up to 12.0 (B200, B300); w4a8_awq counts as int4_awq there.
_INTEGERS = ("int8", "int8_sq", "int4_awq", "w4a8_awq", *WEIGHT_ONLY)
_NO_INTEGERS = ((10, 0), (12, 0))


@dataclass(frozen=True)
class ConverterFamily:
    """A convert_checkpoint.py: its path in the examples, and how its flags differ from the usual ones.

    `gemma_style`: the flags are --ckpt-type, --output-model-dir and --world-size. Features: `pipeline` parallelism,
    `lora` adapters, `lookahead` decoding.
    """

    name: str
    script: str
    pipeline: bool = True
    lora: bool = True
    lookahead: bool = True
    gemma_style: bool = False


@dataclass(frozen=True)
class Architecture:
    """The capabilities for one Hugging Face class.

    `formats` are those of quantize.py; `quantized_cache` says whether that also quantizes the KV cache.
    """

    name: str
    family: ConverterFamily
    formats: tuple[str, ...] = ()
    quantized_cache: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def quantizations(self) -> tuple[str, ...]:
        return ("none", *WEIGHT_ONLY, *self.formats)


def _core(name: str, **how: bool) -> ConverterFamily:
    return ConverterFamily(name, f"models/core/{name}/convert_checkpoint.py", **how)


def _contrib(name: str, pipeline: bool = False) -> ConverterFamily:
    return ConverterFamily(name, f"models/contrib/{name}/convert_checkpoint.py", pipeline, lora=False, lookahead=False)


_LLAMA, _QWEN, _GPT = _core("llama"), _core("qwen"), _core("gpt")
_GEMMA = _core("gemma", pipeline=False, lookahead=False, gemma_style=True)
_PHI = _core("phi", pipeline=False, lookahead=False)
# Its README: "the current checkpoint conversion code requires legacy path".
_LEGACY = {"TRTLLM_DISABLE_UNIFIED_CONVERTER": "1"}
_ARCHITECTURES = (
    Architecture("LlamaForCausalLM", _LLAMA, ("fp8", "nvfp4", "int8_sq", "int4_awq", "w4a8_awq")),
    Architecture("MistralForCausalLM", _LLAMA, ("fp8", "int8_sq", "int4_awq")),
    Architecture("MixtralForCausalLM", _LLAMA, ("fp8", "nvfp4")),
    Architecture("GraniteForCausalLM", _LLAMA, ("fp8",), environment=_LEGACY),
    Architecture("Qwen2ForCausalLM", _QWEN, ("fp8", "int8_sq", "int4_awq")),
    Architecture("Qwen2MoeForCausalLM", _QWEN, quantized_cache=False),
    Architecture("Qwen3ForCausalLM", _QWEN, ("fp8",)),
    Architecture("Qwen3MoeForCausalLM", _QWEN, ("fp8",)),
    Architecture("GPT2LMHeadModel", _GPT, ("fp8", "int8_sq")),
    Architecture("GPTBigCodeForCausalLM", _GPT),
    Architecture("Starcoder2ForCausalLM", _GPT, ("fp8",)),
    Architecture("NemotronForCausalLM", _GPT, ("fp8", "int4_awq")),
    Architecture("GemmaForCausalLM", _GEMMA, ("fp8", "int8_sq", "int4_awq", "w4a8_awq")),
    Architecture("Gemma2ForCausalLM", _GEMMA, ("fp8", "int8_sq", "int4_awq")),
    Architecture("PhiForCausalLM", _PHI, quantized_cache=False),
    Architecture("Phi3ForCausalLM", _PHI, ("fp8", "int8_sq")),
    Architecture("PhiMoEForCausalLM", _PHI, ("fp8", "int8_sq")),
    Architecture("CohereForCausalLM", _core("commandr", lora=False), quantized_cache=False),
    Architecture("FalconForCausalLM", _contrib("falcon", pipeline=True), ("fp8", "int4_awq")),
    Architecture("GPTJForCausalLM", _contrib("gptj"), ("fp8", "int8_sq", "int4_awq")),
    Architecture("GPTNeoXForCausalLM", _contrib("gptneox"), quantized_cache=False),
    Architecture("MPTForCausalLM", _contrib("mpt"), ("fp8", "int8_sq", "int4_awq", "w4a8_awq")),
    Architecture("OPTForCausalLM", _contrib("opt"), quantized_cache=False),
    Architecture("BloomForCausalLM", _contrib("bloom"), ("fp8", "int8_sq")),
)
CAPABILITIES: Mapping[str, Mapping[str, Architecture]] = {
    ENGINE_LINE: {architecture.name: architecture for architecture in _ARCHITECTURES}
}
PYTORCH_ONLY = (
    "DeepseekV3ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "GptOssForCausalLM",
    "Llama4ForCausalLM",
    "Llama4ForConditionalGeneration",
    "Phi4MMForCausalLM",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3NextForCausalLM",
)
"""Architectures that TensorRT-LLM runs only in PyTorch."""


def find_architecture(directory: Path, config: dict[str, Any], line: str = ENGINE_LINE) -> Architecture:
    """Return the capabilities of `line` for the checkpoint `directory` with the parsed config.json `config`.

    Raises BuildError (`unsupported_architecture`) if there are none, naming a target that supports it.
    """
    name = str(config["architectures"][0])
    if line not in CAPABILITIES:
        raise unsupported(
            f"TensorRT-LLM {line} compiles no engines (the {', '.join(CAPABILITIES)} line is the last that does); "
            "build with --target llmapi."
        )
    if name in PYTORCH_ONLY:
        raise unsupported(
            f"{directory} holds a {name}, which TensorRT-LLM {line} runs in PyTorch alone and can't compile into an "
            f"engine; {_alternative(directory, config)}."
        )
    architecture = CAPABILITIES[line].get(name)
    if architecture is None:
        raise unsupported(
            f"{directory} holds a {name}, which is not among the architectures that TensorRT-LLM {line} compiles here "
            f"({', '.join(CAPABILITIES[line])}); {_alternative(directory, config)}."
        )
    if quantized := config.get("quantization_config"):
        method = quantized.get("quant_method", "another method") if isinstance(quantized, dict) else "another method"
        other = ", or build this checkpoint with --target llmapi" if _read_by_llmapi(directory, config) else ""
        raise unsupported(
            f"{directory} is quantized already ({method}), and engines are quantized as they are built; build from the "
            f"original weights{other}."
        )
    return architecture


def _alternative(directory: Path, config: dict[str, Any]) -> str:
    """Return the next step for an architecture without engines."""
    if not _run_by_llmapi(config):
        return "--target llmapi doesn't know it either"
    if not _read_by_llmapi(directory, config):
        return "build its original weights with --target llmapi"
    return "build it with --target llmapi"


def _run_by_llmapi(config: dict[str, Any]) -> bool:
    return str(config["architectures"][0]) in (*SUPPORTED_ARCHITECTURES, *LATER_ARCHITECTURES)


def _read_by_llmapi(directory: Path, config: dict[str, Any]) -> bool:
    """Return whether the LLM API supports the architecture and its quantization."""
    try:
        read_quantization(directory, config)
    except BuildError:
        return False
    return _run_by_llmapi(config)


def refuse_precision(architecture: Architecture, quantization: str, kv_cache_dtype: str) -> None:
    """Raise BuildError (`unsupported_architecture`) for settings that upstream does not support for an architecture."""
    if quantization not in architecture.quantizations:
        others = [other.name for other in CAPABILITIES[ENGINE_LINE].values() if quantization in other.quantizations]
        raise unsupported(
            f"TensorRT-LLM {ENGINE_LINE} doesn't build {architecture.name} with quantization {quantization} (it does "
            f"{', '.join(others)}); choose one of {', '.join(architecture.quantizations)}."
        )
    if kv_cache_dtype != "auto" and not architecture.quantized_cache:
        raise unsupported(
            f"TensorRT-LLM {ENGINE_LINE} doesn't quantize the KV cache of {architecture.name}; leave kv_cache_dtype at "
            "auto."
        )


def is_computed(precision: str, capability: tuple[int, ...]) -> bool:
    """Return whether trtllm-build supports a precision of weights or KV cache for a compute capability ((9, 0))."""
    begin, end = _NO_INTEGERS
    refused = precision in _INTEGERS and begin <= capability < end
    return capability >= MIN_CAPABILITY.get(precision, (0, 0)) and not refused
