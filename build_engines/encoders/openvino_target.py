"""The target of models that embed, rerank or classify texts: OpenVINO on this machine's processor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from build_engines.checkpoints.checkpoint import Checkpoint
from build_engines.encoders.export import EncoderExportTask
from build_engines.encoders.graph_options import GraphOptions
from build_engines.encoders.memory import longest_text_bytes
from build_engines.manifest import CompiledEncoder, Precision
from build_engines.openvino.export_runner import run_export
from build_engines.openvino.target import compute_properties
from build_engines.progress import BuildProgress
from build_engines.target import BuildOptions, CacheKey, Host, installed_versions

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_PRECISION: Precision = "fp32"
"""The embeddings of lower precisions differ from the checkpoint's; docs/encoders.md has the figures."""

# Bytes per parameter on disk.
_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1.1, "int4": 0.8}


@dataclass(frozen=True)
class EncoderTarget:
    """The target `openvino` for an encoder."""

    options: GraphOptions

    @property
    def properties(self) -> dict[str, Any]:
        """The properties for compiling the model."""
        return compute_properties(self.options.precision)

    def check_supported(self, directory: Path, config: dict[str, Any]) -> None:
        self.options.settings_of(directory, config)

    def cache_key(self) -> CacheKey:
        return CacheKey([*self.options.cache_key(), self.properties])

    def host(self) -> Host:
        return Host(installed_versions("openvino", "transformers", "torch", "nncf"))

    def bytes_needed(self, checkpoint: Checkpoint) -> int:
        return int(checkpoint.parameters * _BYTES[self.options.precision])

    def compile(self, checkpoint: Checkpoint, out: Path, progress: BuildProgress) -> CompiledEncoder:
        options, place = self.options, str(checkpoint.directory)
        settings = options.settings_of(checkpoint.directory, checkpoint.config)
        needed = longest_text_bytes(checkpoint.config, place, options.task, settings.max_seq_len, options.precision)
        task = options.export_task(EncoderExportTask, checkpoint, settings, out, self.properties)
        facts = run_export(task, progress) | {"properties": self.properties, "longest_text_bytes": needed}
        return options.compiled(settings, facts)


def target(options: BuildOptions) -> EncoderTarget:
    """Return the target for `options`, which name a task."""
    return EncoderTarget(GraphOptions.of(options, DEFAULT_PRECISION))
