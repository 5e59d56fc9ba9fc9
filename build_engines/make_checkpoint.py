"""A checkpoint that we make ourselves, which appears whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from build_engines.progress import Progress
from build_engines.whole_directory import refuse_foreign, whole_directory, writing


def make_checkpoint(out: Path, write: Callable[[Path], None], progress: Progress) -> None:
    """Have `write` fill an empty directory that becomes `out` once it is whole.

    A checkpoint that stands at `out` is replaced, if it holds what checkpoints hold. Raises BuildError as
    `whole_directory` does.
    """
    refuse_foreign(out, _is_checkpoint, "checkpoint")
    with writing(out, progress.step), whole_directory(out, ours=_is_checkpoint, said="checkpoint") as directory:
        write(directory)
        (directory / MARK).write_text("Made by `inflight checkpoint`; may be replaced by it.\n")


# A checkpoint fetched from elsewhere looks just the same and took hours to fetch, so ours are marked.
MARK = ".inflight-checkpoint"


def _is_checkpoint(directory: Path) -> bool:
    return (directory / MARK).is_file()
