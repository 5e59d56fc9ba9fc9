"""From a model's name or a checkpoint's directory to an engine in the cache, built if there is none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from build_engines.build import BuildOptions, build_engine, with_defaults, with_inflight_version
from build_engines.checkpoints.checkpoint import map_read_errors, read_config, read_config_file
from build_engines.checkpoints.hub import CHECKPOINT_FILES, MAIN_BRANCH, HubModel, download, find_hub_model
from build_engines.checkpoints.locate import checkpoint_name, is_named, is_on_hub, local_path
from build_engines.checkpoints.named_models import NAMED_MODELS
from build_engines.checkpoints.openvino_ir import MODEL, other_precision
from build_engines.errors import BuildError, invalid
from build_engines.model_cache.cache import CachedEngine, EntryRecord, ModelCache
from build_engines.progress import BuildProgress, NoBuildProgress
from build_engines.target import DEFAULT_TARGET, find_target

_TEMPLATES = "additional_chat_templates/*.jinja"


@dataclass(frozen=True)
class _Source:
    """A checkpoint: its name, its revision, and on the hub its files (None: a directory)."""

    name: str
    revision: str
    hub: HubModel | None = None


@contextmanager
def obtain_engine(
    cache: ModelCache,
    checkpoint: str,
    options: BuildOptions,
    progress: BuildProgress,
    revision: str | None = None,
) -> Iterator[CachedEngine]:
    """Yield the engine of `checkpoint`, a directory or a hub name, which no process can remove inside the block.

    It is built if the cache has none of the same content, options and versions. `revision` is a branch, a tag or a
    commit of the hub. While the hub can't be reached, the engine that was last used is taken.

    Raises BuildError as `find_hub_model`, `download` and `build_engine` do, and `output_unwritable` for the cache.
    """
    check_revision(checkpoint, revision)
    if is_named(checkpoint):
        options = replace(options, target=options.target or DEFAULT_TARGET, task=options.task or "generate")
    elif not is_on_hub(checkpoint):
        options = with_defaults(options, local_path(checkpoint))
    target = find_target(options, None if is_on_hub(checkpoint) or is_named(checkpoint) else local_path(checkpoint))
    host = with_inflight_version(target.host())
    capability = host.machine and host.machine.compute_capability
    name = options.name or checkpoint_name(checkpoint)
    target_name = options.target or DEFAULT_TARGET
    affecting = [target_name, target.cache_key(), host.versions, capability, name]
    digest = hashlib.sha256(json.dumps(affecting, sort_keys=True).encode()).hexdigest()
    source = _find_source(cache, checkpoint, revision, digest, progress)
    record = EntryRecord(
        name=source.name,
        revision=source.revision,
        requested_revision=None if source.hub is None else revision or MAIN_BRANCH,
        target=target_name,
        precision=options.precision,
        options=digest,
        version=host.versions.get("inflight", ""),
    )

    def build(out: Path) -> None:
        directory = None if source.hub is None else _download(source.hub, options, progress)
        build_engine(checkpoint, out, replace(options, name=name), progress=progress, directory=directory)

    with ExitStack() as held:
        with _naming_the_cache():
            engine = held.enter_context(cache.hold(record, build, progress.step))
        # A model of the hub may be one for OpenVINO in the cache already, under the key of what a build chooses.
        if target_name == "openvino" and options.precision not in (None, engine.precision):
            raise other_precision(checkpoint, str(engine.precision), str(options.precision))
        yield engine


def check_revision(checkpoint: str, revision: str | None) -> None:
    """Raise BuildError (`invalid_parameter`) for a revision of a directory, which has only its present content."""
    if revision is not None and not is_on_hub(checkpoint):
        raise invalid(f"{checkpoint} has no revisions, which models of the hub have; leave --revision {revision} out.")


def _find_source(
    cache: ModelCache, checkpoint: str, revision: str | None, options: str, progress: BuildProgress
) -> _Source:
    if is_named(checkpoint):
        return _Source(checkpoint, NAMED_MODELS[checkpoint].sha256)
    if not is_on_hub(checkpoint):
        directory = local_path(checkpoint)
        read_config_file(directory)
        return _Source(str(directory.resolve()), _hash_checkpoint(directory))
    progress.step(f"Asking the hub for {checkpoint}")
    try:
        model = find_hub_model(checkpoint, revision)
    except BuildError as error:
        same = [
            entry
            for entry in cache.entries()
            if (entry.record.name, entry.record.options) == (checkpoint, options)
            and (revision or MAIN_BRANCH) in (entry.record.requested_revision, entry.record.revision)
            and entry.manifest
        ]
        if not error.code.startswith("storage_") or not same:
            raise
        newest = max(same, key=lambda entry: entry.last_used).record
        progress.step(
            f"The hub does not answer for it; using the engine of revision {newest.revision[:12]} in the cache"
        )
        return _Source(checkpoint, newest.revision, HubModel(checkpoint, revision, newest.revision, None))
    return _Source(checkpoint, model.commit, model)


def _download(model: HubModel, options: BuildOptions, progress: BuildProgress) -> Path:
    """Download a model whose weights and architecture the target supports."""
    model.check_weights()
    if model.files is not None and model.quantization is None and not model.is_ctranslate2:
        config = tuple(file for file in model.files if _describes_model(file.path))
        directory = download(replace(model, files=config), NoBuildProgress())
        chosen = with_defaults(options, directory)
        find_target(chosen, directory).check_supported(directory, read_config(directory))
    return download(model, progress)


def _describes_model(path: str) -> bool:
    """Return whether a file says what the model is: a small one, or of a module of sentence-transformers."""
    return "/" in path or path == MODEL or (path.endswith(".json") and path != "tokenizer.json")


def _hash_checkpoint(directory: Path) -> str:
    """Return a hash of a checkpoint's files: of their contents, for weights of sizes and times of modification."""
    digest = hashlib.sha256()
    with map_read_errors(directory):
        if directory.is_file():  # in GGUF
            facts = directory.stat()
            return hashlib.sha256(f"{facts.st_size} {facts.st_mtime_ns}".encode()).hexdigest()
        paths = {path for pattern in (*CHECKPOINT_FILES, _TEMPLATES) for path in directory.glob(pattern)}
        for path in sorted(path for path in paths if path.is_file()):
            facts = path.stat()
            digest.update(f"\0{path.relative_to(directory).as_posix()}\0{facts.st_size}\0".encode())
            is_large = path.suffix in (".safetensors", ".bin")
            digest.update(str(facts.st_mtime_ns).encode() if is_large else path.read_bytes())
    return digest.hexdigest()


@contextmanager
def _naming_the_cache() -> Iterator[None]:
    """Let errors of a build name the cache's place instead of --out."""
    try:
        yield
    except BuildError as error:
        raise BuildError(
            str(error).replace("choose another --out", "name another directory with INFLIGHT_CACHE"), error.code
        ) from error
