"""The files of an engine directory: their hashes and sizes, and what differs from them.

Imports only pydantic and the standard library, as `build_engines.manifest` does.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel

from build_engines.errors import BuildError

_CHUNK = 1 << 22


class EngineFile(BaseModel, frozen=True, extra="forbid"):
    """One file of the engine directory: its content's hash and its size."""

    sha256: str
    bytes: int


def _inside_directory(name: str) -> str:
    """Reject a path that could lead out of its directory, since manifests are not trusted."""
    if any(part in ("", ".", "..") for part in name.split("/")) or "\\" in name or "\0" in name:
        raise ValueError(f"{name!r} is not a file path inside the directory")
    return name


FileName = Annotated[str, AfterValidator(_inside_directory)]
"""A file by its path relative to the directory that lists it, with / and without `.` and `..`."""


def refuse_links_out_of(directory: Path) -> None:
    """Raise BuildError (`engine_damaged`) for a symbolic link out of `directory` or, of a download, its cache."""
    root = directory.resolve()
    places = [root]
    if root.parent.name == "snapshots":  # a download in Hugging Face's cache, which links to its blobs
        places.append(root.parent.parent / "blobs")
    for path in directory.rglob("*"):
        if path.is_symlink() and not any(Path(os.path.realpath(path)).is_relative_to(place) for place in places):
            raise BuildError(
                f"{path} is a link out of the engine directory; replace it with a copy of its target.",
                "engine_damaged",
            )


def find_damage(path: Path, expected: EngineFile, hashes: bool, source: str) -> str | None:
    """Return how a file differs from what `source` says of it."""
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    if size != expected.bytes:
        return f"has {size:,} bytes where {source} says {expected.bytes:,}"
    if hashes and hash_file(path) != expected.sha256:
        return f"has another content than {source} says"
    return None


def hash_files(directory: Path) -> dict[str, EngineFile]:
    """Return every file below `directory`, by its path, with its size and hash."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        path.relative_to(directory).as_posix(): EngineFile(sha256=hash_file(path), bytes=path.stat().st_size)
        for path in paths
    }


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
