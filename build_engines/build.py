"""`build_engine`: from a checkpoint to an engine directory with its manifest."""

from __future__ import annotations

import datetime
import hashlib
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from build_engines.atomic_directory import atomic_directory, check_replaceable, exclusive_writer
from build_engines.checkpoints.checkpoint import Checkpoint, map_read_errors, read_checkpoint
from build_engines.checkpoints.locate import checkpoint_name, locate_checkpoint
from build_engines.encoders.settings import find_task
from build_engines.engine_files import hash_files
from build_engines.errors import BuildError
from build_engines.manifest import (
    ENCODER_TARGETS,
    FILE_NAME,
    GENERATION_TARGETS,
    AnyEngine,
    CompiledEncoder,
    CompiledSeq2Seq,
    EncoderManifest,
    EngineManifest,
    EngineSource,
    Manifest,
    Seq2SeqManifest,
    read_manifest,
    verify_engine,
)
from build_engines.progress import BuildProgress, NoBuildProgress
from build_engines.target import (
    BuildOptions,
    CacheKey,
    Compiled,
    Host,
    Target,
    default_target,
    find_target,
    installed_versions,
)

__all__ = ["BuildOptions", "Built", "build_engine", "is_engine", "with_defaults"]


@dataclass(frozen=True)
class Built:
    """The engine's manifest, whether the engine was built or kept unchanged, and notes for the user."""

    manifest: AnyEngine
    fresh: bool
    notes: tuple[str, ...] = ()


def build_engine(
    checkpoint: str,
    out: Path,
    options: BuildOptions,
    *,
    force: bool = False,
    progress: BuildProgress | None = None,
    directory: Path | None = None,
) -> Built:
    """Compile `checkpoint` (a directory or a hub name) into the engine directory `out`.

    `directory` is where a model of the hub was downloaded; without it, it is downloaded.

    An existing complete engine from the same content, options, versions and kind of GPU is kept unless `force`.
    `out` is replaced only when the new engine is complete. Without a target or a task, they are the checkpoint's.
    Raises BuildError with a code of the table.
    """
    progress = progress or NoBuildProgress()
    if options.task is not None or options.target in (None, *GENERATION_TARGETS):
        find_target(options)  # refuses wrong options before anything is downloaded
    check_replaceable(out, is_engine, "engine")
    place = directory or locate_checkpoint(checkpoint, progress)
    chosen = with_defaults(options, place)
    if chosen.task not in (options.task, "generate"):
        progress.step(f"Task of the checkpoint: {chosen.task}")
    target, target_name = find_target(chosen, place), str(chosen.target)
    source_checkpoint = read_checkpoint(place, check=target.check_supported)
    name = options.name or checkpoint_name(checkpoint)
    with exclusive_writer(out, progress.step):
        source = _hash(source_checkpoint, checkpoint, [target_name, name], target.cache_key(), progress)
        here = with_inflight_version(target.host())
        if not force and (unchanged := _unchanged(out, source, here, progress)):
            return Built(unchanged, fresh=False, notes=unchanged.notes)
        if not force:
            _check_same_options(out, source)
        _check_space(target.bytes_needed(source_checkpoint), out)
        with atomic_directory(out, is_ours=is_engine, kind="engine", force=force) as new:
            return _build(source_checkpoint, new, target_name, target, name, source, here, progress)


def with_defaults(options: BuildOptions, directory: Path) -> BuildOptions:
    """Return `options` with a target, and for a target of encoders with a task: those of the model in `directory` where
    they name none. Raises BuildError as `find_task` does."""
    target = options.target or default_target(options.task, directory)
    task = options.task or (find_task(directory) if target in ENCODER_TARGETS else None)
    return replace(options, target=target, task=task)


def is_engine(directory: Path) -> bool:
    return (directory / FILE_NAME).is_file()


def _build(
    checkpoint: Checkpoint,
    out: Path,
    target_name: str,
    target: Target,
    name: str,
    source: EngineSource,
    host: Host,
    progress: BuildProgress,
) -> Built:
    compiled = target.compile(checkpoint, out, progress)
    progress.step("Writing the manifest")
    kinds: dict[type[Compiled], type[AnyEngine]] = {CompiledEncoder: EncoderManifest, CompiledSeq2Seq: Seq2SeqManifest}
    kind = kinds.get(type(compiled), Manifest)
    manifest = kind(
        target=target_name,
        name=name,
        architecture=checkpoint.architecture,
        **dict(compiled),
        machine=host.machine,
        source=source,
        files=hash_files(out),
        versions=host.versions,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )
    manifest.write(out)
    return Built(manifest, fresh=True, notes=compiled.notes)


def _hash_json(values: object) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _hash(checkpoint: Checkpoint, named: str, names: list[str], key: CacheKey, progress: BuildProgress) -> EngineSource:
    progress.step("Reading the checkpoint")
    with map_read_errors(checkpoint.directory):
        return EngineSource(
            checkpoint=named,
            weights=checkpoint.hash_weights(progress.advance),
            tokenizer=checkpoint.hash_tokenizer(),
            chat_template=checkpoint.hash_chat_template(),
            options=_hash_json([*names, *key.options]),
            files=_hash_json(key.files),
        )


def _unchanged(out: Path, source: EngineSource, host: Host, progress: BuildProgress) -> AnyEngine | None:
    """Return the manifest of the engine at `out` if a new build would give the same."""
    if not is_engine(out):
        return None
    try:
        manifest = verify_engine(out, hashes=True)
    except BuildError as error:
        progress.step(f"The existing engine can't be kept: {error}")
        return None
    # The checkpoint's location does not affect its content.
    same = manifest.source.model_copy(update={"checkpoint": source.checkpoint}) == source
    return manifest if same and _same_builder(manifest, host) else None


def _check_same_options(out: Path, source: EngineSource) -> None:
    """Raise BuildError (`output_exists`) for an engine with other options; the files it came from may have changed."""
    try:
        built = read_manifest(out)
    except BuildError:  # none, or one that can't be served
        return
    if built.source.options != source.options:
        raise BuildError(
            f"{out} has an engine of {built.source.checkpoint} with other options ({built.precision} weights, target"
            f" {built.target}); choose another --out, or say --force to replace it.",
            "output_exists",
        )


def _same_builder(manifest: EngineManifest, host: Host) -> bool:
    """Return whether the machine would build the same engine: the kind of GPU matters, the driver does not."""
    kinds = [machine and machine.compute_capability for machine in (manifest.machine, host.machine)]
    return manifest.versions == host.versions and kinds[0] == kinds[1]


def _check_space(needed: int, out: Path) -> None:
    free = shutil.disk_usage(out.resolve().parent).free
    if needed > free:
        raise BuildError(
            f"The engine needs {needed / 1e9:.3g} GB and the disk of {out} has {free / 1e9:.3g} GB left; "
            "free space or choose another --out.",
            "disk_full",
        )


def with_inflight_version(host: Host) -> Host:
    """Add the version of inflight to the builder's versions."""
    return replace(host, versions=installed_versions("inflight") | host.versions)
