"""Finds the directory of a checkpoint named by path or by hub name."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from build_engines.checkpoints.hub import CHECKPOINT_FILES, download, find_hub_model, is_hub_name
from build_engines.errors import BuildError
from build_engines.progress import BuildProgress

_HUB_PAGE = re.compile(r"(?:(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://)([\w.-]+/[\w.-]+)")


def locate_checkpoint(checkpoint: str, progress: BuildProgress, *, include: Sequence[str] = CHECKPOINT_FILES) -> Path:
    """Return the directory of `checkpoint`; download it if it is not a local path but looks like a hub name.

    Only files that match one of `include` are downloaded.

    Raises BuildError (`checkpoint_not_found`) for a path that can't be, and as `find_hub_model` and `download` do. An
    earlier download is used while the hub can't be reached.
    """
    path = local_path(checkpoint)
    if not is_on_hub(checkpoint):
        return path
    progress.step(f"Asking the hub for {checkpoint}")
    return download(find_hub_model(checkpoint, include=include), progress)


def is_on_hub(checkpoint: str) -> bool:
    """Return whether `checkpoint` means a model of the hub: it has the form of a name and is not a local path."""
    return is_hub_name(checkpoint) and not os.path.lexists(local_path(checkpoint))


def checkpoint_name(checkpoint: str) -> str:
    """Return the name of a checkpoint: that of the hub, or the last part of its path."""
    return checkpoint if is_on_hub(checkpoint) else local_path(checkpoint).resolve().name


def local_path(checkpoint: str) -> Path:
    """Return `checkpoint` as a path.

    Raises BuildError (`checkpoint_not_found`) for the home of an unknown user, and for the address of a hub's page.
    """
    if page := _HUB_PAGE.match(checkpoint):
        raise BuildError(f"{checkpoint} is a page of the hub; write {page[1]}.", "checkpoint_not_found")
    try:
        return Path(checkpoint).expanduser()
    except RuntimeError as error:
        raise BuildError(
            f"{checkpoint} begins with a user whose home is not known; check the path.", "checkpoint_not_found"
        ) from error
