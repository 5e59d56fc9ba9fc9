"""Publishes an assembled repository to a directory or to S3, completely or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from build_engines.atomic_directory import atomic_directory, check_replaceable, exclusive_writer
from build_engines.errors import BuildError
from build_engines.manifest import FILE_NAME as ENGINE_FILE
from inflight.deploy.errors import DeployError
from inflight.deploy.publish.s3_address import S3Address
from inflight.deploy.publish.s3_repository import S3Repository
from inflight.deploy.repository import manifest as cards
from inflight.deploy.repository.assemble import AssemblyRequest, assemble_repository
from inflight.deploy.repository.manifest import RepositoryManifest, is_repository

_NOUN = "repository"


@dataclass(frozen=True)
class PublishedRepository:
    """The repository's manifest, and whether files were written."""

    manifest: RepositoryManifest
    updated: bool


def publish_repository(
    request: AssemblyRequest, destination: Path | S3Address, on_message: Callable[[str], None], *, force: bool = False
) -> PublishedRepository:
    """Write the repository to `destination`, which may hold an earlier one of inflight.

    A complete one made with the same request is kept, unless `force`. A directory keeps the old one until the new one
    is complete; on S3, readers get an error meanwhile. Only files of the old one are removed. Raises BuildError and
    DeployError: `output_exists` for a destination with other content, `invalid_parameter`, `disk_full`,
    `engine_damaged` and `storage_*`.
    """
    request.check()
    if isinstance(destination, S3Address):
        return _publish_to_s3(request, destination, on_message, force)
    return _publish_to_directory(
        replace(request, repository_path=request.repository_path or destination.resolve()),
        destination,
        on_message,
        force,
    )


def _publish_to_directory(
    request: AssemblyRequest, out: Path, on_message: Callable[[str], None], force: bool
) -> PublishedRepository:
    check_replaceable(out, is_repository, _NOUN)
    _check_not_nested(out)
    with exclusive_writer(out, on_message):
        _check_no_unlisted(out)
        if not force and is_repository(out) and (card := _reusable_manifest(request, out, on_message)):
            return PublishedRepository(card, updated=False)
        _check_space(request, out)
        on_message(f"Copying {request.total_bytes / 1e6:,.1f} MB to {out}")
        with atomic_directory(out, is_ours=is_repository, kind=_NOUN, force=force) as partial:
            card = assemble_repository(request, partial)
            _check_no_unlisted(out)
        return PublishedRepository(card, updated=True)


def _publish_to_s3(
    request: AssemblyRequest, destination: S3Address, on_message: Callable[[str], None], force: bool
) -> PublishedRepository:
    repository = S3Repository(destination)
    repository.check_replaceable()
    try:
        with tempfile.TemporaryDirectory(prefix="inflight-assemble-") as stage:
            staged = Path(stage) / _NOUN
            staged.mkdir()
            # The engine's files are only uploaded, so links suffice.
            card = assemble_repository(request, staged, place_file=os.symlink)
            sent = repository.upload(staged, card, on_message, force=force)
    except OSError as error:
        raise DeployError(
            f"The repository can't be assembled in {tempfile.gettempdir()} ({error.strerror or error}); free space"
            " there, or name another place with TMPDIR.",
            "disk_full",
        ) from error
    return PublishedRepository(card, updated=sent > 0)


def _check_no_unlisted(out: Path) -> None:
    """Refuse to replace a repository with files that its manifest does not list."""
    unlisted = cards.unlisted_files(out) if is_repository(out) else []
    if unlisted:
        raise DeployError(
            f"{out} holds {unlisted[0]}, which its {cards.MANIFEST_FILE} does not list; choose another --out, or"
            " remove it.",
            "output_exists",
        )


def _check_not_nested(out: Path) -> None:
    """Refuse to replace a directory that contains a repository or an engine."""
    for place in out.resolve().parents:
        for name, noun in ((cards.MANIFEST_FILE, "the repository"), (ENGINE_FILE, "the engine directory")):
            if (place / name).is_file():
                raise DeployError(f"{out} is inside {noun} {place}; choose another --out.", "output_exists")


def _reusable_manifest(
    request: AssemblyRequest, out: Path, on_message: Callable[[str], None]
) -> RepositoryManifest | None:
    try:
        card = cards.verify_repository(out, hashes=True)
    except DeployError as error:
        on_message(f"The existing repository can't be kept: {error}")
        return None
    return card if card.options_digest == request.options_digest() else None


def _check_space(request: AssemblyRequest, out: Path) -> None:
    free = shutil.disk_usage(out.resolve().parent).free
    if request.total_bytes > free:
        raise BuildError(
            f"The repository needs {request.total_bytes / 1e9:.3g} GB and the disk of {out} has {free / 1e9:.3g} GB"
            " left; free space or choose another --out.",
            "disk_full",
        )
