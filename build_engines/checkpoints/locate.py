"""Finds the directory of a checkpoint named by path or by hub name."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from build_engines.checkpoints.hub import CHECKPOINT_FILES, download, find_hub_model, is_hub_name
from build_engines.checkpoints.named_models import NAMED_MODELS, fetch_named_model
from build_engines.errors import BuildError
from build_engines.progress import BuildProgress

_HUB_PAGE = re.compile(r"(?:(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://)([\w.-]+/[\w.-]+(?::[\w.-]+)?)")


def locate_checkpoint(checkpoint: str, progress: BuildProgress, *, include: Sequence[str] = CHECKPOINT_FILES) -> Path:
    """Return the directory, or GGUF file, of `checkpoint`; fetch it if it is not a local path but a model's name.

    Only files that match one of `include` are downloaded.

    Raises BuildError (`checkpoint_not_found`) for a path that can't be, and as `find_hub_model` and `download` do. An
    earlier download is used while the hub can't be reached.
    """
    path = local_path(checkpoint)
    if is_named(checkpoint):
        return fetch_named_model(checkpoint, models_directory(), progress)
    if not is_on_hub(checkpoint):
        return path
    progress.step(f"Asking the hub for {checkpoint}")
    return download(find_hub_model(checkpoint, include=include), progress)


def is_on_hub(checkpoint: str) -> bool:
    """Return whether `checkpoint` means a model of the hub: it has the form of a name and is not a local path."""
    return is_hub_name(checkpoint) and not os.path.lexists(local_path(checkpoint))


def is_named(checkpoint: str) -> bool:
    """Return whether `checkpoint` means a model of `NAMED_MODELS`, and is not a local path."""
    return checkpoint in NAMED_MODELS and not os.path.lexists(local_path(checkpoint))


def checkpoint_name(checkpoint: str) -> str:
    """Return the name of a checkpoint: that of the hub, or the last part of its path without .gguf."""
    if is_on_hub(checkpoint):
        return checkpoint
    path = local_path(checkpoint).resolve()
    return path.stem if path.suffix.lower() == ".gguf" else path.name


def cache_directory() -> Path:
    """Return the user's cache: $INFLIGHT_CACHE, or `inflight/engines` in $XDG_CACHE_HOME (~/.cache)."""
    if named := os.environ.get("INFLIGHT_CACHE"):
        return Path(named).expanduser().absolute()
    # The specification has relative paths ignored.
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "inflight" / "engines"


def models_directory() -> Path:
    """Return where models of `NAMED_MODELS` are; a directory of the cache that is no engine's."""
    return cache_directory() / ".models"


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
