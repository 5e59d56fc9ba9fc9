"""Writes a generated checkpoint atomically."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from build_engines.atomic_directory import atomic_directory, check_replaceable, exclusive_writer
from build_engines.progress import BuildProgress


def make_checkpoint(out: Path, write: Callable[[Path], None], progress: BuildProgress) -> None:
    """Let `write` fill an empty directory that becomes `out` once it is complete.

    A generated checkpoint at `out` is replaced. Raises BuildError as `atomic_directory` does.
    """
    check_replaceable(out, _is_checkpoint, "checkpoint")
    with (
        exclusive_writer(out, progress.step),
        atomic_directory(out, is_ours=_is_checkpoint, kind="checkpoint") as directory,
    ):
        write(directory)
        (directory / MARKER_FILE).write_text("Made by `inflight checkpoint`; may be replaced by it.\n")


# Marks generated checkpoints, since a downloaded one looks the same and may have taken hours.
MARKER_FILE = ".inflight-checkpoint"


def _is_checkpoint(directory: Path) -> bool:
    return (directory / MARKER_FILE).is_file()
