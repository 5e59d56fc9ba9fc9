"""What the targets have in common that compile the graph of an encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from build_engines.checkpoints.checkpoint import Checkpoint
from build_engines.encoders.export import EncoderExportTask
from build_engines.encoders.settings import EncoderSettings, read_settings
from build_engines.manifest import CompiledEncoder, EncoderTask, Precision
from build_engines.target import BuildOptions

if TYPE_CHECKING:
    from pathlib import Path

ExportTask = TypeVar("ExportTask", bound=EncoderExportTask)


@dataclass(frozen=True)
class GraphOptions(BuildOptions):
    """The user's options for the graph, with a task and a precision."""

    task: EncoderTask = "embed"
    precision: Precision = "fp32"

    @classmethod
    def of(cls, options: BuildOptions, default: Precision) -> GraphOptions:
        """Return them, with the target's default precision."""
        return cls(**vars(options) | {"precision": options.precision or default})

    def cache_key(self) -> list[Any]:
        """Return what affects the graph."""
        return [self.task, self.precision, self.max_seq_len, self.pooling, self.normalize]

    def settings_of(self, directory: Path, config: dict[str, Any]) -> EncoderSettings:
        """Return the checkpoint's settings with these options. Raises BuildError as `read_settings` does."""
        return read_settings(directory, config, self.task, self.pooling, self.normalize, self.max_seq_len)

    def export_task(
        self,
        kind: type[ExportTask],
        checkpoint: Checkpoint,
        settings: EncoderSettings,
        out: Path,
        properties: dict[str, Any],
    ) -> ExportTask:
        return kind(
            checkpoint=str(checkpoint.directory),
            out=str(out),
            task=self.task,
            precision=self.precision,
            pooling=settings.pooling,
            normalize=settings.normalize,
            dense=[(dense.path, dense.tanh) for dense in settings.dense],
            truncate_dim=settings.truncate_dim,
            lower_case=settings.lower_case,
            properties=properties,
            smoke_test=self.smoke_test,
        )

    def compiled(self, settings: EncoderSettings, facts: dict[str, Any]) -> CompiledEncoder:
        """Return what the manifest says; `facts` are those of an `EncoderExportResult`, and further ones."""
        shared = CompiledEncoder.model_fields.keys() & vars(settings)
        values = {name: getattr(settings, name) for name in shared} | {"precision": self.precision, "properties": {}}
        return CompiledEncoder.model_validate(values | facts)
