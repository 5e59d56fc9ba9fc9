"""A stand-in for TensorRT's engine reader: a file of the stand-in for trtllm-build, checked for what it was made.

The GPU and the versions of "this machine" are those of the other stand-ins (STANDIN_NVIDIA), else an H100 with 1.2.1.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.standins.nvidia.standin import read_engine, settings

HERE: dict[str, Any] = {
    "gpus": [{"compute_capability": "9.0"}],
    "versions": {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48"},
}


def check_engine(directory: str) -> None:
    """Raise RuntimeError in TensorRT's words where the engine is of another version or for another GPU."""
    here = settings() if "STANDIN_NVIDIA" in os.environ else HERE
    if not here["gpus"]:
        raise RuntimeError("[TensorRT-LLM][ERROR] CUDA runtime error in cudaGetDeviceCount: no CUDA-capable device")
    config = json.loads((Path(directory) / "config.json").read_text())
    ranks = sorted(Path(directory).glob("rank*.engine"))
    if not ranks:
        raise RuntimeError(
            f"[TensorRT-LLM][ERROR] Assertion failed: Failed to open engine file {directory}/rank0.engine"
        )
    for path in ranks:
        found = read_engine(path)
        if found["tensorrt"] != here["versions"]["tensorrt"] or config["version"] != here["versions"]["tensorrt_llm"]:
            raise RuntimeError(
                "[TensorRT-LLM][ERROR] IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Serialization"
                " assertion stdVersionRead == kSERIALIZATION_VERSION failed.Version tag does not match. Note: Current"
                " Version: 240, Serialized Engine Version: 239)"
            )
        capability = here["gpus"][0]["compute_capability"]
        if found["sm"] != capability:
            raise RuntimeError(
                "[TensorRT-LLM][ERROR] IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine plan"
                f" file is generated on an incompatible device, expecting compute {capability} got compute"
                f" {found['sm']}, please rebuild.)"
            )
