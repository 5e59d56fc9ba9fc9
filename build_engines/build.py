"""`build_engine`: from a checkpoint to an engine directory with its manifest."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from build_engines import openvino_target
from build_engines.checkpoint import Checkpoint, read_checkpoint, reading
from build_engines.errors import BuildError
from build_engines.manifest import (
    FILE_NAME,
    File,
    KvPrecision,
    Manifest,
    Precision,
    Source,
    hash_file,
    verify,
)
from build_engines.openvino_export import ExportTask
from build_engines.progress import Progress, Silence
from build_engines.source import locate
from build_engines.whole_directory import refuse_foreign, whole_directory, writing


@dataclass(frozen=True)
class Options:
    """What the user decides about an engine; None takes what suits the rest.

    `max_sequence_length` in tokens, prompt and answer together, at most what the model knows. `trial` loads the new
    engine once and has it generate two tokens, which takes its weights' size in memory.
    """

    target: str = "openvino"
    precision: Precision = "bf16"
    kv_precision: KvPrecision | None = None
    max_sequence_length: int | None = None
    name: str | None = None
    trial: bool = True

    @property
    def kv(self) -> KvPrecision:
        return self.kv_precision or openvino_target.default_kv_precision(self.precision)

    def hash(self, name: str) -> str:
        """Hash what shapes the engine; whether it was tried doesn't."""
        chosen = [self.target, self.precision, self.kv, self.max_sequence_length, name]
        return hashlib.sha256(json.dumps(chosen).encode()).hexdigest()


@dataclass(frozen=True)
class Built:
    """The engine's manifest, whether it was made now or stood there unchanged, and what the user should know."""

    manifest: Manifest
    fresh: bool
    notes: tuple[str, ...] = ()


def build_engine(
    checkpoint: str, out: Path, options: Options, *, force: bool = False, progress: Progress | None = None
) -> Built:
    """Compile `checkpoint` (a directory or a hub name) into the engine directory `out`.

    An engine that stands there, whole and from the same content, options and versions, is kept unless `force`. Until
    the new one is whole, `out` stays as it was. Raises BuildError with a code of the table.
    """
    progress = progress or Silence()
    refuse_foreign(out, is_engine, "engine")
    found = read_checkpoint(locate(checkpoint, progress))
    name = options.name or Path(checkpoint).expanduser().resolve().name
    with writing(out, progress.step):
        source = _hash(found, checkpoint, options.hash(name), progress)
        versions = _versions()
        if not force and (unchanged := _unchanged(out, source, versions, progress)):
            return Built(unchanged, fresh=False)
        _check_space(found, out, options.precision)
        with whole_directory(out, ours=is_engine, said="engine") as directory:
            return _build(found, directory, options, name, source, versions, progress)


def is_engine(directory: Path) -> bool:
    return (directory / FILE_NAME).is_file()


def _build(
    found: Checkpoint,
    out: Path,
    options: Options,
    name: str,
    source: Source,
    versions: dict[str, str],
    progress: Progress,
) -> Built:
    properties = openvino_target.engine_properties(options.precision, options.kv)
    task = ExportTask(
        checkpoint=str(found.directory),
        out=str(out),
        precision=options.precision,
        max_sequence_length=options.max_sequence_length,
        properties=properties,
        trial=options.trial,
    )
    facts = openvino_target.compile_checkpoint(task, progress)
    progress.step("Writing the manifest")
    manifest = Manifest(
        target=options.target,
        name=name,
        architecture=found.architecture,
        precision=options.precision,
        kv_cache_precision=options.kv,
        max_sequence_length=facts.max_sequence_length,
        vocab_size=facts.vocab_size,
        end_ids=facts.end_ids,
        pad_id=facts.pad_id,
        bos_id=facts.bos_id,
        layers=facts.layers,
        kv_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        properties=properties,
        source=source,
        files={path.name: File(sha256=hash_file(path), bytes=path.stat().st_size) for path in sorted(out.iterdir())},
        versions=versions,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )
    manifest.write(out)
    return Built(manifest, fresh=True, notes=tuple(facts.notes))


def _hash(found: Checkpoint, named: str, options: str, progress: Progress) -> Source:
    progress.step("Reading the checkpoint")
    with reading(found.directory):
        return Source(
            checkpoint=named,
            weights=found.hash_weights(progress.advance),
            tokenizer=found.hash_tokenizer(),
            chat_template=found.hash_chat_template(),
            options=options,
        )


def _unchanged(out: Path, source: Source, versions: dict[str, str], progress: Progress) -> Manifest | None:
    """Return the manifest of the engine at `out` if a new build would give the same."""
    if not is_engine(out):
        return None
    try:
        manifest = verify(out, hashes=True)
    except BuildError as error:
        progress.step(f"The engine that stands there can't be kept: {error}")
        return None
    # Where the checkpoint lies makes no difference to what is in it.
    same = manifest.source.model_copy(update={"checkpoint": source.checkpoint}) == source
    return manifest if same and manifest.versions == versions else None


def _check_space(found: Checkpoint, out: Path, precision: Precision) -> None:
    needed = openvino_target.bytes_needed(found.parameters, precision)
    free = shutil.disk_usage(out.resolve().parent).free
    if needed > free:
        raise BuildError(
            f"The engine needs {needed / 1e9:.3g} GB and the disk of {out} has {free / 1e9:.3g} GB left; "
            "free space or choose another --out.",
            "disk_full",
        )


def _versions() -> dict[str, str]:
    found = {}
    for package in ("inflight", *openvino_target.PACKAGES):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
