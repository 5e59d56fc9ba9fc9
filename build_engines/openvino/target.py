"""The OpenVINO target for models that generate text."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from build_engines.checkpoints.checkpoint import Checkpoint, check_buildable
from build_engines.cpu_precision import PrecisionChoice, choose_precision, find_processor
from build_engines.gguf.header import read_gguf
from build_engines.manifest import CompiledEngine, GpuKvPrecision, GpuPrecision, KvPrecision, Precision, SuitedTo
from build_engines.openvino.export import ExportTask
from build_engines.openvino.export_runner import run_export
from build_engines.progress import BuildProgress
from build_engines.target import BuildOptions, CacheKey, Host, installed_versions

_HINTS = {"fp32": "f32", "fp16": "f16"}
_ACTIVATIONS_PER_SCALE = 128
"""How many activations OpenVINO quantizes with one scale before it multiplies them with int8 weights.

With its default of 32, steps take a quarter longer (docs/internals/measurements.md). Not measured with AMX.
"""
PACKAGES = ("openvino", "optimum-intel", "transformers", "torch", "nncf")
# Peak bytes per parameter on disk during a build; integer weights and bf16 weights exist at the same time.
_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 3.1, "int4": 2.8}

# What the weights of a GGUF file become; an export starts from these types.
_GGUF_DTYPES = {"fp32": "F32", "fp16": "F16"}


@dataclass(frozen=True)
class OpenVinoTarget:
    """The target `openvino`: an engine for this machine's CPU."""

    precision: Precision | GpuPrecision
    kv_precision: KvPrecision | GpuKvPrecision
    max_seq_len: int | None
    smoke_test: bool
    choice: PrecisionChoice | None = None

    task_type: ClassVar[type[ExportTask]] = ExportTask

    @property
    def properties(self) -> dict[str, Any]:
        """The properties for OpenVINO."""
        return {**compute_properties(self.precision), "KV_CACHE_PRECISION": self.kv_precision}

    @property
    def suited_to(self) -> SuitedTo | None:
        if self.choice is None:
            return None
        return SuitedTo(processor=str(find_processor()), reason=self.choice.reason, alternative=self.choice.alternative)

    def check_supported(self, directory: Path, config: dict[str, Any]) -> None:
        check_buildable(directory, config)

    def cache_key(self) -> CacheKey:
        return CacheKey([self.precision, self.max_seq_len, self.properties])

    def host(self) -> Host:
        return Host(installed_versions(*PACKAGES))

    def bytes_needed(self, checkpoint: Checkpoint) -> int:
        unpacked = 4 if self.precision == "fp32" else 2
        return int(checkpoint.parameters * (_BYTES[self.precision] + (unpacked if checkpoint.is_gguf else 0)))

    def compile(self, checkpoint: Checkpoint, out: Path, progress: BuildProgress) -> CompiledEngine:
        if self.choice is not None:
            progress.step(f"Weights in {self.precision}: {self.choice.reason}; {self.choice.alternative}")
        with self._directory(checkpoint, out, progress) as directory:
            task = self.task_type(
                checkpoint=str(directory),
                out=str(out),
                precision=self.precision,
                max_seq_len=self.max_seq_len,
                properties=self.properties,
                smoke_test=self.smoke_test,
            )
            facts = run_export(task, progress)
        if checkpoint.is_gguf and self.precision in ("int8", "int4") and read_gguf(checkpoint.directory).is_quantized:
            facts["notes"] = [*facts["notes"], _requantized(checkpoint.directory, self.precision)]
        return CompiledEngine(
            precision=self.precision,
            kv_cache_precision=self.kv_precision,
            properties=self.properties,
            suited_to=self.suited_to,
            **facts,
        )

    @contextlib.contextmanager
    def _directory(self, checkpoint: Checkpoint, out: Path, progress: BuildProgress) -> Iterator[Path]:
        """Yield the checkpoint's directory; of a GGUF file, one in `out` that is there inside the block."""
        if not checkpoint.is_gguf:
            yield checkpoint.directory
            return
        from build_engines.gguf.unpack import unpack

        progress.step(f"Reading the weights of {checkpoint.directory.name}")
        directory = out / "from-gguf"
        directory.mkdir()
        unpack(checkpoint.directory, directory, _GGUF_DTYPES.get(self.precision, "BF16"), progress.advance)
        yield directory
        shutil.rmtree(directory, ignore_errors=True)


def _requantized(file: Path, precision: str) -> str:
    return (
        f"The weights of {file.name} were quantized before and are quantized again to {precision}, so answers can be"
        " worse than the file's; build from the original Hugging Face model for the best."
    )


def target(options: BuildOptions) -> OpenVinoTarget:
    """Return the target for `options`. Defaults: weights that suit the processor, and a u8 KV cache, f32 for fp32
    weights."""
    choice = None if options.precision else choose_precision(find_processor())
    precision = options.precision or choose_precision(find_processor()).precision
    kv_precision = options.kv_precision or ("f32" if precision == "fp32" else "u8")
    return OpenVinoTarget(precision, kv_precision, options.max_seq_len, options.smoke_test, choice)


def compute_properties(precision: str) -> dict[str, Any]:
    """Return properties for compiling a model with these weights; what integers do not compute is computed in bf16."""
    properties: dict[str, Any] = {"INFERENCE_PRECISION_HINT": _HINTS.get(precision, "bf16")}
    if precision == "int8" and not find_processor().has_amx:
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = _ACTIVATIONS_PER_SCALE
    return properties
