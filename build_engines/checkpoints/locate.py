"""Locates a checkpoint by its path or its name on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from build_engines.checkpoints.checkpoint import gguf_error
from build_engines.errors import BuildError
from build_engines.progress import BuildProgress

# The hub allows neither `--` nor `..` in a name.
_HUB_NAME = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_INCLUDE = ["*.json", "*.safetensors", "*.model", "*.jinja", "merges.txt"]
# Copies of the same weights in other formats are in subfolders or under this name.
_EXCLUDE = ["*/*", "consolidated*"]


def locate_checkpoint(checkpoint: str, progress: BuildProgress, *, include: Sequence[str] = _INCLUDE) -> Path:
    """Return the directory of `checkpoint`; download it if it is not a local path but looks like a hub name.

    Only files that match one of `include` are downloaded.

    Raises BuildError (`checkpoint_not_found`) if there is no such path and the hub does not have it, denies access or
    can't be reached. An earlier download is used while the hub can't be reached.
    """
    try:
        path = Path(checkpoint).expanduser()
    except RuntimeError as error:
        raise _not_found(f"{checkpoint} begins with a user whose home is not known; check the path.") from error
    if os.path.lexists(path) or not _HUB_NAME.fullmatch(checkpoint):
        return path
    if checkpoint.lower().endswith("-gguf"):
        raise gguf_error(checkpoint)
    progress.step(f"Fetching {checkpoint} from the hub")
    # Imported here, since a local checkpoint needs no network library.
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(checkpoint, allow_patterns=list(include), ignore_patterns=_EXCLUDE))
    except errors.GatedRepoError as error:
        raise _not_found(
            f"{checkpoint} is gated on the hub; accept its terms there and log in with `hf auth login`."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise _not_found(
            f"There is no directory {checkpoint}, and the hub has no such model either (or it is private); "
            "check the name."
        ) from error
    except errors.HFValidationError as error:
        raise _not_found(
            f"There is no directory {checkpoint}, and no model of the hub can be called that; check the path."
        ) from error
    except (errors.LocalEntryNotFoundError, OSError) as error:
        raise _not_found(
            f"There is no directory {checkpoint}, and the Hugging Face hub can't be reached to look there; "
            "check the path or the network."
        ) from error


def _not_found(message: str) -> BuildError:
    return BuildError(message, "checkpoint_not_found")
