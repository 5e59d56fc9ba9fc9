"""What `build_engine` asks of a target, what the user decides, and which targets there are."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, get_args

from build_engines.checkpoints.checkpoint import Checkpoint
from build_engines.errors import BuildError
from build_engines.manifest import (
    GpuFeatures,
    GpuKvPrecision,
    GpuLimits,
    GpuMachine,
    GpuPrecision,
    KeptKvPrecision,
    KeptPrecision,
    KvPrecision,
    Precision,
)
from build_engines.progress import BuildProgress

# Each module has `target(options) -> Target`, and is imported when its target is asked for.
_MODULES = {
    "openvino": "build_engines.openvino.target",
    "tensorrt-llm": "build_engines.tensorrt_llm.target",
    "llmapi": "build_engines.llmapi.target",
}
PRECISIONS: dict[str, tuple[str, ...]] = {
    "openvino": get_args(Precision),
    "tensorrt-llm": ("bf16", "fp16", "fp32", *get_args(GpuPrecision)),
    "llmapi": ("bf16", "fp16", "fp32", "fp8", "nvfp4"),
}
KV_PRECISIONS: dict[str, tuple[str, ...]] = {
    "openvino": get_args(KvPrecision),
    "tensorrt-llm": get_args(GpuKvPrecision),
    "llmapi": ("fp8",),
}


@dataclass(frozen=True)
class BuildOptions:
    """What the user decides about an engine; None takes what suits the rest.

    `max_seq_len` in tokens, prompt and answer together, at most what the model knows. `trial` loads the new
    engine once and has it generate two tokens, which takes its weights' size in memory. `settings` is what the chosen
    target alone knows, as a type of its own.
    """

    target: str = "openvino"
    precision: Precision | GpuPrecision | None = None
    kv_precision: KvPrecision | GpuKvPrecision | None = None
    max_seq_len: int | None = None
    name: str | None = None
    smoke_test: bool = True
    settings: object = None


@dataclass(frozen=True)
class Host:
    """What would build now: its `versions` by name, and the GPU where engines are bound to one."""

    versions: dict[str, str]
    machine: GpuMachine | None = None


@dataclass(frozen=True)
class CompiledEngine:
    """What the manifest says of a compiled engine, in the manifest's words. `notes` are sentences for the user."""

    precision: Precision | GpuPrecision | KeptPrecision
    kv_cache_precision: KvPrecision | GpuKvPrecision | KeptKvPrecision
    max_seq_len: int
    vocab_size: int
    end_ids: list[int]
    pad_id: int | None
    bos_id: int | None
    layers: int
    kv_heads: int
    head_dim: int
    properties: dict[str, Any] = field(default_factory=dict)
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    limits: GpuLimits | None = None
    features: GpuFeatures | None = None
    notes: tuple[str, ...] = ()


class Target(Protocol):
    """One way to make an engine, with the user's decisions inside. The methods are called in this order."""

    def check_supported(self, directory: Path, config: dict[str, Any]) -> None:
        """Raise BuildError (`unsupported_architecture`) for a checkpoint that this target can't build."""

    def cache_key(self) -> list[Any]:
        """Return what shapes the engine, as JSON values; two builds with the same list make the same engine."""

    def host(self) -> Host:
        """Return the versions of the builder; an engine of another builder is rebuilt."""

    def bytes_needed(self, checkpoint: Checkpoint) -> int:
        """Return the disk space that a build takes at its peak, without the few megabytes beside the weights."""

    def compile(self, checkpoint: Checkpoint, out: Path, progress: BuildProgress) -> CompiledEngine:
        """Write the engine into the empty directory `out`; the manifest is not its affair."""


def find_target(options: BuildOptions) -> Target:
    """Return the target that `options` name.

    Raises BuildError (`invalid_parameter`) for a precision that it doesn't know, and what the target itself refuses.
    """
    check_precisions(options)
    found: Target = importlib.import_module(_MODULES[options.target]).target(options)
    return found


def check_precisions(options: BuildOptions) -> None:
    """Raise BuildError (`invalid_parameter`) where the target doesn't know a precision, naming one that does."""
    if options.target not in _MODULES:
        raise BuildError(
            f"There is no target {options.target}; choose one of {', '.join(_MODULES)}.", "invalid_parameter"
        )
    _check(options.target, "--precision", options.precision, PRECISIONS)
    _check(options.target, "--kv-cache-precision", options.kv_precision, KV_PRECISIONS)


def _check(target: str, flag: str, value: str | None, known: dict[str, tuple[str, ...]]) -> None:
    if value is None or value in known[target]:
        return
    others = " or ".join(f"--target {other}" for other, values in known.items() if value in values)
    raise BuildError(
        f"--target {target} has no {flag} {value}; choose one of {', '.join(known[target])}"
        + (f", or {others}." if others else "."),
        "invalid_parameter",
    )
