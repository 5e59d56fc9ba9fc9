"""The engines of one deployment: at most one that generates, and at most one encoder for each other task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from build_engines.manifest import EncoderManifest, Manifest, Seq2SeqManifest, verify_engine
from inflight.deploy.errors import DeployError, invalid
from inflight.deploy.repository.model_names import TASKS, BatchedTask, Task
from inflight.deploy.repository.options import DeploymentOptions

BatchedManifest = EncoderManifest | Seq2SeqManifest
AnyManifest = Manifest | BatchedManifest


@dataclass(frozen=True)
class EngineSet:
    """The engines' manifests by task, and their directories unless they are in an assembled repository.

    `served_model_name` replaces the name of the main engine for applications.
    """

    manifests: Mapping[Task, AnyManifest]
    directories: Mapping[Task, Path] = field(default_factory=dict)
    served_model_name: str | None = None

    @classmethod
    def find(cls, engine: Path, options: DeploymentOptions | None = None) -> EngineSet:
        """Verify `engine`, which may have any task, and the encoders of the options.

        Raises BuildError as `verify_engine` does, and DeployError: `invalid_parameter` for a second encoder with the
        same task, and `engine_incompatible` for an encoder whose task is not the one for which it is named.
        """
        options = options or DeploymentOptions()
        main = verify_engine(engine)
        manifests: dict[Task, AnyManifest] = {main.task: main}
        directories: dict[Task, Path] = {main.task: engine}
        for task, directory in options.encoders.directories().items():
            if task in manifests:
                raise invalid(
                    f"{engine} has the task {task}, and --{task} names {directory} for the same; leave one of them out."
                )
            manifests[task], directories[task] = verify_encoder_for(task, directory), directory
        return cls(manifests, directories, options.served_model_name)

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(task for task in TASKS if task in self.manifests)

    @property
    def all(self) -> tuple[AnyManifest, ...]:
        """The manifests, that of the main engine first."""
        return tuple(self.manifests[task] for task in self.tasks)

    @property
    def main(self) -> AnyManifest:
        """The engine that generates, else the first encoder: what the deployment is called after."""
        return self.all[0]

    @property
    def generator(self) -> Manifest | None:
        manifest = self.manifests.get("generate")
        return manifest if isinstance(manifest, Manifest) else None

    @property
    def encoders(self) -> dict[BatchedTask, BatchedManifest]:
        return {manifest.task: manifest for manifest in self.all if not isinstance(manifest, Manifest)}

    @property
    def model_names(self) -> dict[Task, str]:
        """The models' names for applications, by task."""
        names: dict[Task, str] = {manifest.task: manifest.name for manifest in self.all}
        return names | ({self.main.task: self.served_model_name} if self.served_model_name else {})


def verify_encoder_for(task: BatchedTask, directory: Path) -> BatchedManifest:
    """Verify an encoder's directory and its task. Raises as `EngineSet.find` does."""
    manifest = verify_engine(directory)
    if not isinstance(manifest, Manifest) and manifest.task == task:
        return manifest
    raise DeployError(
        f"{directory} is an engine with the task {manifest.task}, and --{task} needs one with the task {task}; name"
        " another engine, or leave it out.",
        "engine_incompatible",
    )
