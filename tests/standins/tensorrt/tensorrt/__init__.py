"""A stand-in for NVIDIA's tensorrt package: what inflight calls of it, and plans that OpenVINO computes.

Names, arguments and refusals are those of the Python bindings of TensorRT 10.12 to 11.1 (python/src and
python/docstrings of NVIDIA/TensorRT), and the operators those of ONNX that its parser supports in which types
(operators.json, after docs/operators.md of onnx/onnx-tensorrt). Which version and GPU this is, STANDIN_NVIDIA says. A
plan is the ONNX model behind a head, and an execution context computes it in the memory to which its addresses point.
"""

from __future__ import annotations

import json
import os
import sys
from enum import IntEnum
from pathlib import Path
from typing import Any

from . import execution
from .network import INetworkDefinition, OnnxParser

__all__ = ["Builder", "BuilderFlag", "DataType", "Logger", "NetworkDefinitionCreationFlag", "OnnxParser", "Runtime"]

_MAGIC = b"STAND-IN PLAN "


def _settings() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(os.environ["STANDIN_NVIDIA"]).read_text())
    return found


def _version() -> str:
    return str(_settings()["versions"]["tensorrt"])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    raise AttributeError(name)


class DataType(IntEnum):
    FLOAT = 0
    HALF = 1
    INT64 = 8


class NetworkDefinitionCreationFlag(IntEnum):
    EXPLICIT_BATCH = 0
    STRONGLY_TYPED = 1


class BuilderFlag(IntEnum):
    TF32 = 7


class Logger:
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def __init__(self, min_severity: int = 2) -> None:
        self.min_severity = min_severity

    def log(self, severity: int, msg: str) -> None:
        if severity <= self.min_severity:
            print(f"[11/25/2026-12:00:00] [TRT] [{'FEWIV'[severity]}] {msg}", file=sys.stderr, flush=True)


class IOptimizationProfile:
    def __init__(self) -> None:
        self.shapes: dict[str, list[list[int]]] = {}

    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:
        for name, lower, upper in (("opt", min, opt), ("max", opt, max)):
            if len(lower) != len(upper) or any(a > b for a, b in zip(lower, upper, strict=True)):
                raise RuntimeError(f"Shape provided for {name} is inconsistent with other shapes.")
        self.shapes[input] = [list(min), list(opt), list(max)]

    def __bool__(self) -> bool:
        return bool(self.shapes)


class IBuilderConfig:
    def __init__(self) -> None:
        self.flags = {BuilderFlag.TF32}
        self.profiles: list[IOptimizationProfile] = []

    def set_flag(self, flag: BuilderFlag) -> None:
        self.flags.add(BuilderFlag(flag))

    def clear_flag(self, flag: BuilderFlag) -> None:
        self.flags.discard(BuilderFlag(flag))

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        if not profile:
            return -1
        self.profiles.append(profile)
        return len(self.profiles) - 1


class IHostMemory(bytes):
    """A buffer. The real one has no methods of bytes."""

    @property
    def nbytes(self) -> int:
        return len(self)


class Builder:
    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        strong = int(_version().split(".")[0]) >= 11 or flags & 1 << int(NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        return INetworkDefinition(bool(strong))

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig()

    def create_optimization_profile(self) -> IOptimizationProfile:
        return IOptimizationProfile()

    def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> IHostMemory | None:
        wished = str(_settings().get("fail", ""))
        if wished == "plan:memory":
            self._logger.log(
                Logger.ERROR, "IBuilder::buildSerializedNetwork: Error Code 2: OutOfMemory (Requested size"
            )
            return None
        if not network.strong:
            self._logger.log(Logger.ERROR, "the stand-in has no weakly typed networks, which pick types of their own")
            return None
        names = set(network.inputs)
        if not config.profiles or any(set(profile.shapes) != names for profile in config.profiles):
            self._logger.log(
                Logger.ERROR,
                "IBuilder::buildSerializedNetwork: Error Code 4: Internal Error (Network has dynamic or "
                "shape inputs, but no optimization profile has been defined.)",
            )
            return None
        head = {
            "tensorrt": _version(),
            "compute_capability": _settings()["gpus"][0]["compute_capability"],
            "inputs": network.inputs,
            "outputs": network.outputs,
            "profiles": [profile.shapes for profile in config.profiles],
            "tf32": BuilderFlag.TF32 in config.flags,
        }
        return IHostMemory(_MAGIC + json.dumps(head).encode() + b"\n" + network.model)


class Runtime:
    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> execution.ICudaEngine | None:
        line, _, model = bytes(serialized_engine).partition(b"\n")
        head = json.loads(line.removeprefix(_MAGIC))
        if head["tensorrt"] != _version():
            self._refuse(
                "The engine plan file is not compatible with this version of TensorRT, expecting library version "
                f"{head['tensorrt']} got {_version()}, please rebuild."
            )
            return None
        here = _settings()["gpus"][0]["compute_capability"]
        if head["compute_capability"] != here:
            self._refuse(
                "The engine plan file is generated on an incompatible device, expecting compute "
                f"{here} got compute {head['compute_capability']}, please rebuild."
            )
            return None
        return execution.ICudaEngine(head, model, self._logger, DataType)

    def _refuse(self, why: str) -> None:
        self._logger.log(Logger.ERROR, f"IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error ({why})")
