"""What a user named to serve or to pull: something ready to serve, a checkpoint, or a model of the hub."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

from build_engines import manifest as engines
from build_engines.checkpoints.checkpoint import gguf_choice_error, gguf_files
from build_engines.checkpoints.hub import is_hub_name
from build_engines.checkpoints.locate import is_named, local_path
from build_engines.checkpoints.named_models import NAMED_MODELS
from build_engines.errors import BuildError
from build_engines.gguf.header import is_gguf
from inflight.deploy.publish.s3_address import S3Address, parse_location
from inflight.deploy.repository import manifest as repositories

Kind = Literal["deployable", "checkpoint", "hub"]


def kind_of(argument: str) -> Kind:
    """Return what `argument` is: an engine directory, a repository or its address on S3 ("deployable"), or a source.

    A path wins over a name of the hub. Raises BuildError `engine_not_found` if it is nothing of these,
    `not_a_checkpoint` for a directory of GGUF files and `checkpoint_not_found` for a page of the hub, and
    DeployError for an address.
    """
    path = local_path(argument)
    if isinstance(parse_location(argument), S3Address):
        return "deployable"
    if (path / engines.FILE_NAME).is_file() or repositories.is_repository(path):
        return "deployable"
    if (path / "config.json").is_file() or is_gguf(path):
        return "checkpoint"
    if os.path.lexists(path):
        if files := gguf_files(path):
            raise gguf_choice_error(path, files, "name one of the files")
        raise BuildError(
            f"{argument} is {_what(path)}: it has neither {engines.FILE_NAME} (an engine) nor"
            f" {repositories.MANIFEST_FILE} (a repository of `inflight assemble`) nor config.json (a checkpoint);"
            " name one of these, or a model of the hub as owner/name.",
            "engine_not_found",
        )
    if is_named(argument) or is_hub_name(argument):
        return "hub"
    raise BuildError(
        f"There is no directory {argument}, and it is no model of the hub, which is written owner/name, nor"
        f" {' or '.join(NAMED_MODELS)}; {_meant(path)}",
        "engine_not_found",
    )


def _what(path: Path) -> str:
    if path.is_dir():
        return "a directory of something else" if any(path.iterdir()) else "an empty directory"
    return "a file" if path.exists() else "a link to nothing"


def _meant(path: Path) -> str:
    """Return the next step: a directory or a model of the cache with a similar name, else what to check."""
    from build_engines.model_cache.cache import ModelCache
    from inflight.common.suggestions import nearest

    names = {
        entry.record.name.rpartition("/")[2].lower(): entry.record.name for entry in ModelCache.default().entries()
    }
    with suppress(OSError):
        names |= {each.name.lower(): str(path.parent / each.name) for each in path.parent.iterdir() if each.is_dir()}
    near = nearest(path.name.lower(), names)
    return f"did you mean {names[near]}?" if near else "check the path, or name an engine directory or a checkpoint."
