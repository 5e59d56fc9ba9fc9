"""Detects GPUs, driver and NVIDIA software of this machine or of a container on it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError
from build_engines.manifest import GpuMachine

GPU_QUERY = (
    "nvidia-smi",
    "--query-gpu=index,name,compute_cap,driver_version,memory.total",
    "--format=csv,noheader,nounits",
)
# Run in TensorRT-LLM's Python; reads only metadata, since importing the package takes a GPU and half a minute.
SOFTWARE_SCRIPT = """
import sys
sys.path[:] = filter(None, sys.path)  # nothing in the current directory is a library
import importlib.metadata, json, os, pathlib
def version(*names):
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
def cuda():
    if os.environ.get("CUDA_VERSION"):
        return os.environ["CUDA_VERSION"]
    path = pathlib.Path("/usr/local/cuda/version.json")
    return json.loads(path.read_text())["cuda"]["version"] if path.is_file() else None
print(json.dumps({
    "tensorrt_llm": version("tensorrt_llm"),
    "tensorrt": version("tensorrt", "tensorrt_cu13", "tensorrt_cu12"),
    "cuda": cuda(),
    "transformers": version("transformers"),
    "modelopt": version("nvidia-modelopt"),
}))
"""
# Timeout in seconds, since the container may be pulled first.
_COMMAND_TIMEOUT = 600
_MIB = 1 << 20
# index, name, compute_cap, driver_version, memory.total; names hold no commas.
_GPU = re.compile(r"(\d+), ([^,]+), (\d+\.\d+), ([\d.]+), (\d+|\[.*\])")


@dataclass(frozen=True)
class Gpu:
    """One GPU: `compute_capability` as "9.0", memory in bytes."""

    index: int
    name: str
    compute_capability: str
    driver: str
    memory_bytes: int


@dataclass(frozen=True)
class Machine:
    """The GPUs, in the order of their indices, and versions by name (tensorrt_llm, tensorrt, cuda, transformers,
    modelopt); missing packages are absent."""

    gpus: tuple[Gpu, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def built_on(self) -> GpuMachine | None:
        """The first GPU as the manifest's build machine, None without GPUs."""
        if not self.gpus:
            return None
        first = self.gpus[0]
        return GpuMachine(gpu=first.name, compute_capability=first.compute_capability, driver=first.driver)

    def several_kinds(self, where: str) -> str | None:
        """Return a sentence if the GPUs in `where` differ in compute capability."""
        kinds = sorted({gpu.compute_capability for gpu in self.gpus})
        if len(kinds) < 2:
            return None
        return (
            f"The GPUs in {where} have compute capability {' and '.join(kinds)}, but an engine runs on one kind only;"
            " choose one with CUDA_VISIBLE_DEVICES, or with --docker-gpus device=0."
        )


def detect_machine(prefix: Sequence[str] = (), python: Sequence[str] | None = None) -> Machine:
    """Detect this machine, or through `prefix` (`docker run … IMAGE`) a container on it.

    No nvidia-smi means no GPU. Raises BuildError (`build_failed`) if a program's output can't be parsed.
    """
    gpus = find_gpus(prefix)
    return Machine(gpus if prefix else _visible(gpus), find_software(prefix, python))


def _visible(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Return the GPUs in CUDA_VISIBLE_DEVICES, in its order; nvidia-smi ignores the variable."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if not all(part.strip().isdigit() for part in chosen):
        return gpus
    by_index = {gpu.index: gpu for gpu in gpus}
    return tuple(by_index[int(part)] for part in chosen if int(part) in by_index)


def find_gpus(prefix: Sequence[str] = ()) -> tuple[Gpu, ...]:
    """Return the GPUs that nvidia-smi lists, () if it is missing or fails."""
    return parse_gpus(_run([*prefix, *GPU_QUERY]))


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Parse the output of `GPU_QUERY`: one line for each GPU, memory in MiB, possibly after a container's banner.

    Raises BuildError (`build_failed`) if there is output but no line describes a GPU.
    """
    gpus = [
        Gpu(int(fields[1]), fields[2].strip(), fields[3], fields[4], _memory(fields[5]))
        for line in text.splitlines()
        if (fields := _GPU.fullmatch(line.strip()))
    ]
    if text.strip() and not gpus:
        answer = text.strip().splitlines()[-1]
        raise BuildError(f"nvidia-smi answers {answer!r}, which can't be read; fix the driver.", "build_failed")
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def _memory(text: str) -> int:
    # Boards that share the system's memory (GB10) print "[N/A]".
    return 0 if text.startswith("[") else int(text) * _MIB


def find_software(prefix: Sequence[str] = (), python: Sequence[str] | None = None) -> dict[str, str]:
    """Return the versions that `python` (by default `python_of_tensorrt_llm()`, in a container python3) finds."""
    interpreter = list(python or (["python3"] if prefix else python_of_tensorrt_llm()))
    answer = _run([*prefix, *interpreter, "-c", SOFTWARE_SCRIPT])
    versions: dict[str, Any] = {}
    # A container prints its banner first.
    with contextlib.suppress(ValueError, IndexError):
        versions = json.loads(answer.strip().splitlines()[-1])
    return {name: str(version) for name, version in versions.items() if version is not None}


def python_of_tensorrt_llm() -> list[str]:
    """Return the Python of the `trtllm-build` on the PATH, or python3.

    inflight may run in another Python, for instance in a virtual environment.
    """
    program = shutil.which("trtllm-build")
    if program is None:
        return ["python3"]
    with contextlib.suppress(OSError, UnicodeDecodeError), Path(program).open(encoding="utf-8") as script:
        first = script.readline()
        if first.startswith("#!"):
            return first[2:].split()
    return ["python3"]


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=_COMMAND_TIMEOUT,
            env=os.environ | {"PYTHONWARNINGS": "ignore"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
