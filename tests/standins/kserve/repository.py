"""The model repositories of the stand-in: names, tensors and configurations, as upstream has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

UPSTREAM = json.loads((Path(__file__).parents[2] / "data" / "tensorrt_llm_triton.json").read_text(encoding="utf-8"))

_OLDER_NAMES = {"min_tokens": "min_length", "seed": "random_seed"}
_ADDED_IN_0_19 = ("return_perf_metrics", "guided_decoding_guide_type", "guided_decoding_guide")


@dataclass(frozen=True)
class TensorSpec:
    """An input or output: KServe's type, and the shape without the batch."""

    datatype: str
    dims: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True)
class ModelSpec:
    name: str
    platform: str
    max_batch_size: int
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    decoupled: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    steps: Sequence[str] = ()

    def shape(self, tensor: TensorSpec) -> list[int]:
        """With the batch, as metadata has it."""
        return [-1, *tensor.dims] if self.max_batch_size else list(tensor.dims)

    def config(self) -> dict[str, Any]:
        """As Triton's HTTP endpoint gives it."""
        config: dict[str, Any] = {
            "name": self.name,
            "model_transaction_policy": {"decoupled": self.decoupled},
            "max_batch_size": self.max_batch_size,
            "input": [
                {"name": name, "data_type": _triton_type(tensor), "dims": tensor.dims, "optional": tensor.optional}
                for name, tensor in self.inputs.items()
            ],
            "output": [
                {"name": name, "data_type": _triton_type(tensor), "dims": tensor.dims}
                for name, tensor in self.outputs.items()
            ],
            "parameters": {name: {"string_value": value} for name, value in self.parameters.items()},
        }
        if self.steps:
            return {
                **config,
                "platform": self.platform,
                "ensemble_scheduling": {"step": [{"model_name": step, "model_version": -1} for step in self.steps]},
            }
        return {**config, "backend": self.platform}


def text_models(
    *,
    decoupled: bool = True,
    accumulate: bool = False,
    older: bool = False,
    batches: bool = True,
    add_special_tokens: str = "true",
    without: Sequence[str] = (),
) -> dict[str, ModelSpec]:
    """`all_models/inflight_batcher_llm`: `older` has the inputs of 0.18, `without` leaves models out."""
    models = [_upstream(name, older, batches) for name in UPSTREAM["models"]]
    changed = {
        # Triton itself says of an ensemble that it is decoupled, once one of its models is.
        "ensemble": {
            "platform": "ensemble",
            "steps": ("preprocessing", "tensorrt_llm", "postprocessing"),
            "decoupled": decoupled,
        },
        "preprocessing": {"parameters": {"add_special_tokens": add_special_tokens, "tokenizer_dir": "/tokenizer"}},
        "tensorrt_llm": {"decoupled": decoupled, "platform": "tensorrtllm"},
        "tensorrt_llm_bls": {
            "decoupled": decoupled,
            "parameters": {
                "accumulate_tokens": "true" if accumulate else "${accumulate_tokens}",
                "tensorrt_llm_model_name": "tensorrt_llm",
            },
        },
    }
    return {
        model.name: replace(model, **changed.get(model.name, {}))  # type: ignore[arg-type]
        for model in models
        if model.name not in without
    }


def llmapi(*, decoupled: bool = True) -> dict[str, ModelSpec]:
    """`all_models/llmapi`, which has no batches; `triton_config` in its model.yaml says whether it is decoupled."""
    one, several = (1,), (-1,)
    inputs = {
        "text_input": TensorSpec("BYTES", several),
        "image_url": TensorSpec("BYTES", several, True),
        **{f"sampling_param_{name}": TensorSpec(kind, one, True) for name, kind in _LLMAPI_SAMPLING.items()},
        "sampling_param_stop": TensorSpec("BYTES", several, True),
        **{name: TensorSpec("BOOL", one, True) for name in _LLMAPI_FLAGS},
        "lora_id": TensorSpec("UINT64", one, True),
        **{name: TensorSpec("BYTES", one, True) for name in ("lora_name", "lora_path", "lora_ckpt_source")},
    }
    outputs = {
        **{name: TensorSpec("BYTES", several) for name in ("text_output", "finish_reason", "stop_reason")},
        "cumulative_logprob": TensorSpec("FP32", several),
        **{f"kv_cache_{name}": TensorSpec("INT32", several) for name in _LLMAPI_BLOCKS},
        "kv_cache_hit_rate": TensorSpec("FP32", several),
        **{f"{name}_time_ns": TensorSpec("INT64", one) for name in _MOMENTS},
        "acceptance_rate": TensorSpec("FP32", one),
        **{name: TensorSpec("INT32", one) for name in ("total_accepted_draft_tokens", "total_draft_tokens")},
    }
    return {"tensorrt_llm": ModelSpec("tensorrt_llm", "python", 0, inputs, outputs, decoupled)}


_LLMAPI_SAMPLING = {
    "best_of": "INT32",
    "temperature": "FP32",
    "top_k": "INT32",
    "top_p": "FP32",
    "frequency_penalty": "FP32",
    "presence_penalty": "FP32",
    "max_tokens": "INT32",
    "seed": "UINT64",
    "exclude_input_from_output": "BOOL",
    "return_perf_metrics": "BOOL",
}
_LLMAPI_FLAGS = ("streaming", "return_finish_reason", "return_stop_reason", "return_cumulative_logprob", "stop")
_LLMAPI_BLOCKS = ("reused_block", "missed_block", "alloc_new_blocks", "alloc_total_blocks")
_MOMENTS = ("arrival", "first_scheduled", "first_token", "last_token")


def _upstream(name: str, older: bool, batches: bool) -> ModelSpec:
    said = UPSTREAM["models"][name]
    added = {} if older else UPSTREAM["additions_1x"].get(name, {})
    inputs, outputs = (
        {tensor["name"]: _tensor(tensor) for tensor in (*said[side], *added.get(side, ()))}
        for side in ("input", "output")
    )
    if older:
        inputs = {_OLDER_NAMES.get(key, key): each for key, each in inputs.items() if key not in _ADDED_IN_0_19}
    return ModelSpec(name, "python", 64 if batches else 0, inputs, outputs)


def _tensor(said: Mapping[str, Any]) -> TensorSpec:
    datatype = said["data_type"].removeprefix("TYPE_")
    return TensorSpec(
        "BYTES" if datatype == "STRING" else datatype, tuple(said["dims"]), bool(said.get("optional", False))
    )


def _triton_type(tensor: TensorSpec) -> str:
    return "TYPE_STRING" if tensor.datatype == "BYTES" else f"TYPE_{tensor.datatype}"
