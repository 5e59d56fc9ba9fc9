"""Building as the shared tiny engine was built, and listening to it."""

from __future__ import annotations

from pathlib import Path

from build_engines.build import BuildOptions, Built, build_engine
from build_engines.manifest import Manifest
from build_engines.progress import NoBuildProgress


class RecordedProgress(NoBuildProgress):
    """Progress that remembers its sentences."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def step(self, sentence: str) -> None:
        self.sentences.append(sentence)


class StartedBuild(Exception):  # noqa: N818 (nothing went wrong)
    """Raised where the export would begin, so that no test waits for an engine it doesn't look at."""


class UntilExport(RecordedProgress):
    def step(self, sentence: str) -> None:
        super().step(sentence)
        if sentence in ("Loading the exporter", "Copying the checkpoint"):
            raise StartedBuild


def build(checkpoint: Path, out: Path, progress: NoBuildProgress | None = None, *, force: bool = False) -> Built:
    """With the very options that the shared tiny engine was built with."""
    options = BuildOptions(precision="fp32", name="tiny-llama")
    return build_engine(str(checkpoint), out, options, force=force, progress=progress)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def generator(built: Built) -> Manifest:
    """Return the manifest of an engine that generates text."""
    assert isinstance(built.manifest, Manifest)
    return built.manifest
