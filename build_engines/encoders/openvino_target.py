"""The target of models that embed, rerank or classify texts: OpenVINO on this machine's processor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from build_engines.checkpoints.checkpoint import Checkpoint
from build_engines.encoders.export import EncoderExportTask
from build_engines.encoders.settings import EncoderSettings, read_settings
from build_engines.manifest import EncoderTask, Pooling, Precision
from build_engines.openvino.export_runner import run_export
from build_engines.openvino.properties import compute_properties
from build_engines.openvino.target import builder_versions
from build_engines.progress import BuildProgress
from build_engines.target import BuildOptions, CompiledEncoder, Host

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_PRECISION: Precision = "fp32"
"""The embeddings of lower precisions differ from the checkpoint's; docs/encoders.md has the figures."""

# Bytes per parameter on disk.
_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1.1, "int4": 0.8}


@dataclass(frozen=True)
class EncoderTarget:
    """The target `openvino` for an encoder."""

    task: EncoderTask
    precision: Precision
    max_seq_len: int | None
    pooling: Pooling | None
    normalize: bool | None
    smoke_test: bool

    @property
    def properties(self) -> dict[str, Any]:
        """The properties for compiling the model."""
        return compute_properties(self.precision)

    def check_supported(self, directory: Path, config: dict[str, Any]) -> None:
        self._settings(directory, config)

    def cache_key(self) -> list[Any]:
        return [self.task, self.precision, self.max_seq_len, self.pooling, self.normalize, self.properties]

    def host(self) -> Host:
        return Host(builder_versions("openvino", "transformers", "torch", "nncf"))

    def bytes_needed(self, checkpoint: Checkpoint) -> int:
        return int(checkpoint.parameters * _BYTES[self.precision])

    def compile(self, checkpoint: Checkpoint, out: Path, progress: BuildProgress) -> CompiledEncoder:
        settings = self._settings(checkpoint.directory, checkpoint.config)
        task = EncoderExportTask(
            checkpoint=str(checkpoint.directory),
            out=str(out),
            task=self.task,
            precision=self.precision,
            pooling=settings.pooling,
            normalize=settings.normalize,
            dense=[(dense.path, dense.tanh) for dense in settings.dense],
            lower_case=settings.lower_case,
            properties=self.properties,
            smoke_test=self.smoke_test,
        )
        facts = run_export(task, progress)
        return CompiledEncoder(
            task=self.task,
            precision=self.precision,
            max_seq_len=settings.max_seq_len,
            properties=self.properties,
            pooling=settings.pooling,
            normalize=settings.normalize,
            prompts=dict(settings.prompts),
            default_prompt=settings.default_prompt,
            activation=settings.activation,
            labels=settings.labels,
            notes=settings.notes,
            **facts | {"inputs": tuple(facts["inputs"])},
        )

    def _settings(self, directory: Path, config: dict[str, Any]) -> EncoderSettings:
        return read_settings(directory, config, self.task, self.pooling, self.normalize, self.max_seq_len)


def target(options: BuildOptions) -> EncoderTarget:
    """Return the target for `options`, which name a task."""
    return EncoderTarget(
        cast(EncoderTask, options.task),
        cast(Precision, options.precision or DEFAULT_PRECISION),
        options.max_seq_len,
        options.pooling,
        options.normalize,
        options.smoke_test,
    )
