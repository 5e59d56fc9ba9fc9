"""The interface of a build target, the user's options, and the list of targets."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args

from build_engines.checkpoints.checkpoint import Checkpoint, checkpoint_directory, map_read_errors, read_json
from build_engines.checkpoints.ctranslate2_model import is_ctranslate2_model, seq2seq_task
from build_engines.checkpoints.openvino_ir import is_openvino_model
from build_engines.errors import BuildError, invalid, unsupported
from build_engines.manifest import (
    SEQ2SEQ_TARGETS,
    TARGETS,
    CompiledEncoder,
    CompiledEngine,
    CompiledSeq2Seq,
    EncoderTask,
    GpuKvPrecision,
    GpuMachine,
    GpuPrecision,
    KvPrecision,
    Pooling,
    Precision,
    Seq2SeqTask,
)
from build_engines.progress import BuildProgress

Task = Literal["generate"] | EncoderTask | Seq2SeqTask
TASKS: tuple[Task, ...] = ("generate", *get_args(EncoderTask), *get_args(Seq2SeqTask))
DEFAULT_TARGET = "openvino"
# Each module has `target(options) -> Target`, and is imported only if its target is chosen.
_MODULES = {
    "openvino": "build_engines.openvino.target",
    "tensorrt-llm": "build_engines.tensorrt_llm.target",
    "llmapi": "build_engines.llmapi.target",
}
_ENCODER_MODULES = {
    "openvino": "build_engines.encoders.openvino_target",
    "llmapi": "build_engines.encoders.llmapi_target",
    "tensorrt": "build_engines.encoders.tensorrt_target",
}
_SEQ2SEQ_MODULES = {"ctranslate2": "build_engines.ctranslate2.target"}
# It has `target(options, directory) -> Target` for a directory that has an OpenVINO model.
_READY_MODULE = "build_engines.openvino.ready_model"
_FLOATS = ("bf16", "fp16", "fp32")
PRECISIONS: dict[str, tuple[str, ...]] = {
    "openvino": get_args(Precision),
    "tensorrt-llm": (*_FLOATS, *get_args(GpuPrecision)),
    "llmapi": (*_FLOATS, "fp8", "nvfp4"),
}
ENCODER_PRECISIONS: dict[str, tuple[str, ...]] = {
    "openvino": get_args(Precision),
    "llmapi": _FLOATS,
    "tensorrt": _FLOATS,
}
SEQ2SEQ_PRECISIONS: dict[str, tuple[str, ...]] = {"ctranslate2": (*_FLOATS, "int8")}
KV_PRECISIONS: dict[str, tuple[str, ...]] = {
    "openvino": get_args(KvPrecision),
    "tensorrt-llm": get_args(GpuKvPrecision),
    "llmapi": ("fp8",),
}


@dataclass(frozen=True)
class BuildOptions:
    """The user's options; None means the target's default, and the target that the checkpoint needs.

    `max_seq_len` counts prompt and answer together, in tokens, up to the model's maximum. `smoke_test` loads the new
    engine once and generates two tokens, which takes as much memory as the weights. `settings` are those of the chosen
    target, in a type of that target. `task` is None for the checkpoint's; `pooling` and `normalize` belong to `embed`.
    """

    target: str | None = None
    precision: Precision | GpuPrecision | None = None
    kv_precision: KvPrecision | GpuKvPrecision | None = None
    max_seq_len: int | None = None
    name: str | None = None
    smoke_test: bool = True
    settings: object = None
    task: Task | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None


@dataclass(frozen=True)
class Host:
    """The builder: its `versions` by name, and the GPU if engines are bound to one."""

    versions: dict[str, str]
    machine: GpuMachine | None = None


def installed_versions(*packages: str) -> dict[str, str]:
    """Return the versions of those of `packages` that are installed."""
    versions = {}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


class CacheKey(NamedTuple):
    """What affects an engine, as JSON values: the user's options, and fingerprints of files besides the weights."""

    options: list[Any]
    files: Sequence[Any] = ()


Compiled = CompiledEngine | CompiledEncoder | CompiledSeq2Seq


class Target(Protocol):
    """One way to build an engine, with the user's options. The methods are called in this order."""

    def check_supported(self, directory: Path, config: dict[str, Any]) -> None:
        """Raise BuildError (`unsupported_architecture`) for a checkpoint that this target can't build."""

    def cache_key(self) -> CacheKey:
        """Return what affects the engine besides the checkpoint's weights; equal keys make equal engines."""

    def host(self) -> Host:
        """Return the versions of the builder; an engine of another builder is rebuilt."""

    def bytes_needed(self, checkpoint: Checkpoint) -> int:
        """Return the peak disk space of a build in bytes, without the few megabytes besides the weights."""

    def compile(self, checkpoint: Checkpoint, out: Path, progress: BuildProgress) -> Compiled:
        """Write the engine, without the manifest, into the empty directory `out`."""


def is_seq2seq(directory: Path) -> bool:
    """Return whether a directory has a model with an encoder and a decoder, or its config.json alone."""
    path = checkpoint_directory(directory) / "config.json"
    with map_read_errors(directory):
        return is_ctranslate2_model(directory) or (path.is_file() and seq2seq_task(read_json(path)) is not None)


def default_target(task: Task | None, directory: Path | None = None) -> str:
    """Return the target for a task, or without one for the model in `directory`."""
    if task is None and directory is not None and is_seq2seq(directory):
        return SEQ2SEQ_TARGETS[0]
    return SEQ2SEQ_TARGETS[0] if task in get_args(Seq2SeqTask) else DEFAULT_TARGET


def find_target(options: BuildOptions, directory: Path | None = None) -> Target:
    """Return the target that `options` name, for what `directory` has; without a task, the one that generates.

    Raises BuildError (`invalid_parameter`) as `check_precisions` does, and the target's own errors.
    """
    check_precisions(options)
    name = options.target or default_target(options.task)
    options = replace(options, target=name)
    if name in SEQ2SEQ_TARGETS:
        of_format: Target = importlib.import_module(_SEQ2SEQ_MODULES[name]).target(options)
        return of_format
    if directory is not None and is_ctranslate2_model(directory):
        raise unsupported(
            f"{directory} has a model for CTranslate2, which --target {name} can't use; build it without --target."
        )
    if directory is not None and (directory / "config.json").is_file():
        config = read_json(directory / "config.json")
        if seq2seq_task(config) is not None:
            raise unsupported(
                f"{directory} has the architecture {config['architectures'][0]}, with an encoder and a decoder, for"
                f" which --target {name} has no engines; build it without --target and --task."
            )
    if directory is not None and is_openvino_model(directory):
        ready: Target = importlib.import_module(_READY_MODULE).target(options, directory)
        return ready
    encodes = options.task not in (None, "generate")
    if not encodes and name not in _MODULES:
        raise _wrong_target(name, "generate", _MODULES)
    if encodes and options.kv_precision is not None:
        raise invalid(f"An engine with the task {options.task} has no KV cache; leave --kv-cache-precision out.")
    module = importlib.import_module((_ENCODER_MODULES if encodes else _MODULES)[name])
    target: Target = module.target(options)
    return target


def check_precisions(options: BuildOptions) -> None:
    """Raise BuildError (`invalid_parameter`) for a target that is not for the task, and for an unsupported precision,
    naming a target that supports it. Without a task, the target may be for any."""
    target = options.target or default_target(options.task)
    if target not in TARGETS:
        raise invalid(f"There is no target {target}; choose one of {', '.join(TARGETS)}.")
    of_task = PRECISIONS
    if options.task not in (None, "generate"):
        of_task = SEQ2SEQ_PRECISIONS if options.task in get_args(Seq2SeqTask) else ENCODER_PRECISIONS
    if options.task is not None and target not in of_task:
        raise _wrong_target(target, options.task, of_task)
    of_target = (SEQ2SEQ_PRECISIONS | ENCODER_PRECISIONS | of_task)[target]
    _check(target, "--precision", options.precision, of_task | {target: of_target})
    _check(target, "--kv-cache-precision", options.kv_precision, KV_PRECISIONS)


def _wrong_target(target: str, task: str, targets: Iterable[str]) -> BuildError:
    return invalid(f"--target {target} has no engines with the task {task}; choose one of {', '.join(targets)}.")


def _check(target: str, flag: str, value: str | None, choices: dict[str, tuple[str, ...]]) -> None:
    if value is None or value in choices.get(target, ()):
        return
    if target not in choices:
        raise invalid(f"--target {target} has no {flag}; leave it out.")
    others = " or ".join(f"--target {other}" for other, values in choices.items() if value in values)
    raise invalid(
        f"--target {target} has no {flag} {value}; choose one of {', '.join(choices[target])}"
        + (f", or {others}." if others else ".")
    )
