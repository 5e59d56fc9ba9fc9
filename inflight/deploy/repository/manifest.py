"""`inflight.json`: the files of an assembled repository, and the version that wrote it.

It is written last, so a repository without it is incomplete.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from build_engines.engine_files import EngineFile, FileName, find_damage
from build_engines.manifest import Manifest
from inflight import __version__, compatible
from inflight.common.schema.validation_errors import first_error
from inflight.deploy.errors import DeployError
from inflight.deploy.repository.engine_set import AnyManifest, BatchedManifest, EngineSet
from inflight.deploy.repository.model_names import BatchedTask, Task

MANIFEST_FILE = "inflight.json"
FORMAT = 1
MAX_HASHED_BYTES = 2 << 30
"""Up to this size all contents are hashed before serving, as in an engine directory."""


class RepositoryManifest(BaseModel):
    """The contract between assembling and serving.

    `inflight_version` wrote the repository; `vendored` says whether it contains the runtime. `engine` is the manifest
    of the engine that generates, if there is one, `encoders` are those of the others. `engine_path` is the path of the
    main engine on the serving machine if it is not in the repository. `options_digest` is a hash of the options.
    `served_model_name` is the main engine's name for applications; None means that of its manifest. `files` are all
    files of the repository but this one. `tags` are S3's tags of their contents; a directory has none of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    inflight_version: str
    vendored: bool
    engine: Manifest | None
    encoders: dict[BatchedTask, BatchedManifest] = Field(default_factory=dict)
    engine_path: str | None
    kv_cache_tokens: int | None
    options_digest: str
    served_model_name: str | None = None
    files: dict[FileName, EngineFile]
    tags: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_engines(self) -> Self:
        if self.engine is None and not self.encoders:
            raise ValueError("it names no engine")
        return self

    @property
    def engines(self) -> EngineSet:
        """The manifests of all engines."""
        manifests: dict[Task, AnyManifest] = {} if self.engine is None else {self.engine.task: self.engine}
        manifests.update((manifest.task, manifest) for manifest in self.encoders.values())
        return EngineSet(manifests, served_model_name=self.served_model_name)

    @property
    def model_name(self) -> str:
        """The main engine's name for applications."""
        return self.served_model_name or self.engines.main.name

    @property
    def total_bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    @classmethod
    def parse(cls, content: bytes, where: str) -> RepositoryManifest:
        """Parse a manifest. Raises DeployError `engine_damaged`, and `engine_incompatible` for another format."""
        try:
            version = _Version.model_validate_json(content).format
            if version != FORMAT:
                raise DeployError(
                    f"{where} has format {version} and this version of inflight reads {FORMAT}; assemble it again.",
                    "engine_incompatible",
                )
            return cls.model_validate_json(content)
        except ValidationError as error:
            raise DeployError(
                f"{where} can't be read ({first_error(error)}); assemble the repository again.", "engine_damaged"
            ) from error

    def content(self) -> bytes:
        """Return the content of its file."""
        unset = {name for name in ("tags", "served_model_name", "encoders") if not getattr(self, name)}
        return (self.model_dump_json(indent=2, exclude=unset) + "\n").encode()

    def write(self, directory: Path) -> None:
        (directory / MANIFEST_FILE).write_bytes(self.content())

    def check_version(self, where: str) -> None:
        """Refuse a repository that this version can't run. Raises DeployError `engine_incompatible`."""
        if not self.vendored and not compatible(self.inflight_version, __version__):
            raise DeployError(
                f"{where} was assembled by inflight {self.inflight_version} and this is {__version__}; assemble it"
                f" again, or with --vendor, or serve it with inflight {self.inflight_version}.",
                "engine_incompatible",
            )


class _Version(BaseModel):
    format: int


def is_repository(directory: Path) -> bool:
    """Return whether the directory is an assembled repository."""
    return (directory / MANIFEST_FILE).is_file()


def listed_files(content: bytes) -> set[str]:
    """Return the files that a manifest of any format lists; empty if it can't be read."""
    try:
        files = json.loads(content)["files"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return set()
    return set(files) if isinstance(files, dict) else set()


def unlisted_files(directory: Path) -> list[str]:
    """Return the paths of files in a repository that its manifest does not list."""
    listed = {MANIFEST_FILE, *listed_files((directory / MANIFEST_FILE).read_bytes())}
    paths = (path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())
    # Ignore Python's caches beside a model.
    named = (path.relative_to(directory) for path in paths if "__pycache__" not in path.parts)
    return sorted(path.as_posix() for path in named if path.as_posix() not in listed)


def verify_repository(directory: Path, *, hashes: bool | None = None) -> RepositoryManifest:
    """Read the manifest and compare the repository's files, sizes and contents with it.

    Contents are hashed if `hashes` is True, or if it is None and all are at most 2 GiB together. Python's caches beside
    a model are ignored. Raises DeployError as `RepositoryManifest.parse` does, and `engine_damaged`.
    """
    try:
        card = RepositoryManifest.parse((directory / MANIFEST_FILE).read_bytes(), str(directory / MANIFEST_FILE))
        if hashes is None:
            hashes = card.total_bytes <= MAX_HASHED_BYTES
        for name, expected in card.files.items():
            if damage := find_damage(directory / name, expected, hashes, MANIFEST_FILE):
                raise DeployError(f"{directory / name} {damage}; assemble the repository again.", "engine_damaged")
    except OSError as error:
        raise DeployError(
            f"The repository {directory} can't be read ({error.strerror or error}); fix that, or assemble it again.",
            "engine_damaged",
        ) from error
    return card


def path_inside(root: Path, name: str) -> Path:
    """Return a repository file's path below `root`. Raises DeployError `engine_damaged` for a path outside of it."""
    place = root / name
    if not place.resolve().is_relative_to(root.resolve()):
        raise DeployError(f"{name!r} would be outside of {root}; build the engine again.", "engine_damaged")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place
