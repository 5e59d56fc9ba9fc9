"""The formats and splits that a target builds for a model, from the tables that its build checks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build_engines.errors import BuildError, unsupported
from build_engines.plan.formats import GPU_WEIGHTS, KvFormat, WeightFormat
from build_engines.plan.gpu_memory import Split
from build_engines.plan.model import PlannedModel

if TYPE_CHECKING:
    from build_engines.machine import Machine

_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
_QUANTIZED_CACHES = ("fp8", "int8")


@dataclass(frozen=True)
class FormatSupport:
    """`reason` is why the formats aren't built, without its full stop; None if they are. `notes` are their costs."""

    reason: str | None = None
    notes: tuple[str, ...] = ()


def target_support(target: str, model: PlannedModel, device: str, sm: int | None) -> TargetSupport:
    """Return the support of `target` for `model`; `sm` None means any GPU.

    Raises BuildError (`unsupported_architecture`) if the target doesn't support the model.
    """
    if model.ready and target != "openvino":
        raise unsupported(
            f"{model.where} has a model for OpenVINO, which runs on the processor; leave --gpu, --memory and --target"
            " out, or name the original model."
        )
    if target == "openvino":
        return OpenVinoSupport(model)
    return TensorRtLlmSupport(model, device, sm) if target == "tensorrt-llm" else LlmApiSupport(model, sm)


def default_gpu_target(model: PlannedModel) -> str:
    """Return the GPU target for the model: llmapi if only the LLM API supports it, otherwise tensorrt-llm."""
    from build_engines.capabilities.llmapi import SUPPORTED_ARCHITECTURES
    from build_engines.capabilities.tensorrt_llm import CAPABILITIES

    name = model.shape.architecture
    compiled = any(name in architectures for architectures in CAPABILITIES.values())
    return "llmapi" if name in SUPPORTED_ARCHITECTURES and not compiled else "tensorrt-llm"


def _of_the_original(model: PlannedModel) -> tuple[str, ...]:
    if model.shape.quantized is None:
        return ()
    return (
        f"The checkpoint is already quantized ({model.shape.quantized}); the plan is for the original weights, "
        "which a build needs.",
    )


class OpenVinoSupport:
    """Support of the target `openvino`: all of its formats, or that of weights that are taken as they are."""

    def __init__(self, model: PlannedModel) -> None:
        self.kept = model.ready
        self.notes = _of_the_original(model)

    def check(self, weights: WeightFormat, kv: KvFormat, split: Split) -> FormatSupport:
        return FormatSupport()


class TensorRtLlmSupport:
    """Support of the target `tensorrt-llm`, with the checks of its build."""

    kept: WeightFormat | None = None

    def __init__(self, model: PlannedModel, device: str, sm: int | None) -> None:
        from build_engines.capabilities.tensorrt_llm import find_architecture

        self._config = _plain_config(model)
        self._device = device
        self._machine = _machine(device, sm)
        self.notes = _of_the_original(model)
        find_architecture(Path(model.where), self._config)

    def check(self, weights: WeightFormat, kv: KvFormat, split: Split) -> FormatSupport:
        from build_engines.tensorrt_llm.recipe import Recipe
        from build_engines.tensorrt_llm.rules.machine import check_machine
        from build_engines.tensorrt_llm.target import plan_build

        recipe = Recipe.model_validate(
            {
                "dtype": _DTYPES.get(weights.name, "bfloat16"),
                "quantization": "none" if weights.name in _DTYPES else weights.name,
                "kv_cache_dtype": kv.name if kv.name in _QUANTIZED_CACHES else "auto",
                "tensor_parallel": split.tensor,
                "pipeline_parallel": split.pipeline,
            }
        )
        try:
            # The checkpoint may have another path on the machine that builds it.
            plan = plan_build(recipe, Path("/"), self._config)
            if self._machine is not None:
                check_machine(plan.recipe, self._machine, self._device)
        except BuildError as error:
            return FormatSupport(_without_advice(error))
        return FormatSupport(notes=plan.notes)


class LlmApiSupport:
    """Support of the target `llmapi`: it quantizes only the KV cache, and reads checkpoints quantized by ModelOpt."""

    def __init__(self, model: PlannedModel, sm: int | None) -> None:
        from build_engines.capabilities.quantization import read_quantization
        from build_engines.llmapi.target import check_architecture

        directory = Path(model.where)
        self.notes = check_architecture(
            directory, {"architectures": [model.shape.architecture]}, trust_remote_code=False
        )
        has = read_quantization(directory, model.config)
        self._sm, self._has, self._kv = sm, has.precision, has.kv
        self.kept = GPU_WEIGHTS.get(has.precision or "")
        if has.precision is not None and self.kept is None:
            raise unsupported(
                f"{directory} is quantized to {has.precision}, which can't be planned; read the engine's start-up log."
            )

    def check(self, weights: WeightFormat, kv: KvFormat, split: Split) -> FormatSupport:
        if (reason := self._unsupported(weights, kv)) is not None:
            return FormatSupport(reason)
        if self._has is None and weights.name not in _DTYPES:
            return FormatSupport(
                notes=(
                    "The LLM API doesn't quantize weights: build from a checkpoint quantized by ModelOpt to "
                    f"{weights.name}.",
                )
            )
        return FormatSupport()

    def _unsupported(self, weights: WeightFormat, kv: KvFormat) -> str | None:
        if weights.name not in _LLM_API_WEIGHTS:
            return f"the LLM API doesn't read checkpoints quantized to {weights.name}"
        if kv.name == "int8":
            return f"the LLM API has no KV cache in {kv.name}"
        if self._has is not None and weights is not self.kept:
            return f"the checkpoint's weights are quantized to {self._has}"
        if self._kv is not None and kv.name != self._kv:
            return f"the checkpoint's KV cache is quantized to {self._kv}"
        if self._sm is not None and self._sm >= _BLACKWELL and "awq" in weights.name:
            return f"the LLM API has no {weights.name} for compute capability {self._sm / 10:.1f}"
        return None


TargetSupport = OpenVinoSupport | TensorRtLlmSupport | LlmApiSupport
"""`check` says whether the target builds formats and a split, and their costs. `notes` are sentences about the model,
`kept` is the checkpoint's quantization if the target keeps it."""

# Formats of read_quantization that the plan knows, and unquantized ones.
_LLM_API_WEIGHTS = (*_DTYPES, "fp8", "nvfp4", "int4_awq", "w4a8_awq")
# The hardware support matrix in docs/source/features/quantization.md of NVIDIA/TensorRT-LLM (09d4c79b): AWQ up to
# Hopper.
_BLACKWELL = 100


def _without_advice(error: BuildError) -> str:
    """Return the error without its advice and its list of other models: the plan has its own advice."""
    sentence = str(error).removesuffix(".")
    return re.sub(r" \([^()]*\)$", "", sentence.rpartition("; ")[0] or sentence)


def _plain_config(model: PlannedModel) -> dict[str, Any]:
    """Return the shape as a config.json with the usual keys, without quantization: the plan is for original weights."""
    shape = model.shape
    return {
        "architectures": [shape.architecture],
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.positions,
        "torch_dtype": "bfloat16",
    }


def _machine(device: str, sm: int | None) -> Machine | None:
    """Return a machine with one such GPU and the TensorRT-LLM version that compiles engines."""
    if sm is None:
        return None
    from build_engines.containers import ENGINE_LINE
    from build_engines.machine import Gpu, Machine

    gpu = Gpu(index=0, name=device, compute_capability=f"{sm // 10}.{sm % 10}", driver="", memory_bytes=0)
    return Machine((gpu,), {"tensorrt_llm": f"{ENGINE_LINE}.0"})
