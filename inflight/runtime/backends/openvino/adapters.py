"""LoRA adapters: loaded with the deployment, selected by number, one at a time for all running requests."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from inflight.runtime.messages import GenerationRequest, RequestError

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"

_PREFIX = "base_model.model."
_DOWN = ".lora_A.weight"
_MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format."""


class OpenVinoAdapters:
    """The adapters of a deployment; each is a PEFT directory or its safetensors file.

    The scale of an adapter is lora_alpha / r (with rank-stabilised LoRA, lora_alpha / sqrt(r)) of its
    adapter_config.json, or 1 without such a file. Raises ValueError for an unusable adapter.
    """

    def __init__(self, paths: tuple[str, ...], engine_dir: str) -> None:
        self._paths = paths
        self._scaled = [_load(Path(path), engine_dir) for path in paths]
        self._engine_dir = engine_dir
        self._active = 0

    @property
    def pipeline_properties(self) -> dict[str, Any]:
        return {"adapters": openvino_genai.AdapterConfig(self._scaled)} if self._scaled else {}

    def check(self, request: GenerationRequest) -> None:
        """Raise RequestError (`invalid_parameter`) if the deployment doesn't have the request's adapter."""
        if not 0 <= request.adapter <= len(self._scaled):
            have = len(self._scaled)
            raise RequestError(
                f"lora_task_id is {request.adapter} and this deployment has"
                f" {f'the adapters 1 to {have}' if have else 'no adapters'}; choose one of them, or leave it out",
                "invalid_parameter",
            )

    def check_all(self, pipeline: openvino_genai.ContinuousBatchingPipeline) -> None:
        """Run each adapter once, to find one that doesn't fit the model before a request asks for it."""
        for number, path in enumerate(self._paths, start=1):
            try:
                self.activate(pipeline, number)
            except RuntimeError as error:
                reason = " ".join(str(error).split())[:200]
                raise ValueError(f"the adapter {path} doesn't fit {self._engine_dir} ({reason})") from error
        self.activate(pipeline, 0)

    def activate(self, pipeline: openvino_genai.ContinuousBatchingPipeline, number: int) -> None:
        """Make the pipeline compute with this adapter from now on; 0 disables adapters. No request may be running."""
        if number == self._active:
            return
        while pipeline.has_non_finished_requests():  # cancelled requests leave with the next step
            pipeline.step()
        config = openvino_genai.GenerationConfig(max_new_tokens=1, ignore_eos=True)
        config.adapters = openvino_genai.AdapterConfig([self._scaled[number - 1]] if number else [])
        # The pipeline takes an adapter only with a whole call, and keeps the last one.
        pipeline.generate([openvino.Tensor(np.zeros((1, 1), np.int64))], [config])
        self._active = number


def _load(path: Path, engine_dir: str) -> tuple[openvino_genai.Adapter, float]:
    weights = path / WEIGHTS_FILE if path.is_dir() else path
    try:
        modules = _modules(weights)
        scale = _scale(weights.parent / CONFIG_FILE)
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, RecursionError) as error:
        raise ValueError(f"the adapter {path} can't be read ({type(error).__name__}: {error})") from error
    if not modules:
        raise ValueError(f"the adapter {path} holds no LoRA matrices (names that end in {_DOWN}); convert it with PEFT")
    layers = (Path(engine_dir) / "openvino_model.xml").read_text(encoding="utf-8")
    for module in modules:
        if f"{module}/" not in layers:
            raise ValueError(
                f"the adapter {path} changes {module}, which {engine_dir} doesn't have; give an adapter of this model"
            )
    return openvino_genai.Adapter(str(weights)), scale


def _modules(weights: Path) -> list[str]:
    """Return the modules that an adapter changes, from the header of its safetensors file."""
    with weights.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(weights.stat().st_size, _MAX_HEADER_BYTES):
            raise ValueError("it is not a safetensors file")
        names = json.loads(file.read(length))
    return [name.removeprefix(_PREFIX).removesuffix(_DOWN) for name in names if name.endswith(_DOWN)]


def _scale(config: Path) -> float:
    if not config.is_file():
        return 1.0
    found = json.loads(config.read_text(encoding="utf-8"))
    rank = found["r"]
    return float(found["lora_alpha"] / (math.sqrt(rank) if found.get("use_rslora") else rank))
