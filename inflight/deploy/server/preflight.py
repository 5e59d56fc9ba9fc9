"""Compares an engine with this machine, before Triton fails with a serialization error.

A TensorRT engine runs with the versions of TensorRT-LLM and TensorRT that compiled it, on GPUs of the kind that it was
compiled on, and needs as many of them as it was split for. The LLM API compiles nothing and needs only the GPUs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from build_engines import containers, machine
from build_engines.cpu_precision import better_precision, find_processor
from build_engines.machine import Gpu, Machine
from build_engines.manifest import EncoderManifest, EngineManifest, Manifest, Seq2SeqManifest
from inflight import __version__, compatible
from inflight.deploy import memory
from inflight.deploy.errors import DeployError, invalid
from inflight.deploy.repository import kv_budget
from inflight.deploy.repository.engine_set import AnyManifest
from inflight.deploy.repository.environment import container_name, world_size
from inflight.deploy.repository.model_names import CPP_BACKEND, PROCESSOR_TARGETS

_FIRST_WITH_ENCODE = (1, 3)
_REQUEST_LOG_VARIABLE = "INFLIGHT_REQUEST_LOG"
"""The file to which an engine's model writes its lines; see `inflight.runtime.triton.request_log`."""
_NAMES = {"tensorrt_llm": "TensorRT-LLM", "tensorrt": "TensorRT"}


@dataclass(frozen=True)
class Problem:
    """One sentence; with a code if the engine can't run, without one if it may."""

    sentence: str
    code: str | None = None


def check_engine(manifest: AnyManifest, backends: Path, on_message: Callable[[str], None]) -> None:
    """Raise the first problem that prevents the engine from running here as DeployError; report the others.

    Inspects the machine only for engines that need GPUs. Codes: `engine_incompatible`, `gpu_missing`,
    `package_missing`, `server_not_found`.
    """
    here = Machine() if manifest.target in PROCESSOR_TARGETS else machine.detect_machine()
    for problem in find_problems(manifest, here, backends):
        if problem.code is not None:
            raise DeployError(problem.sentence, problem.code)
        on_message(f"Warning: {problem.sentence}")


def request_log_environment(path: Path | None, manifest: AnyManifest) -> dict[str, str]:
    """Return the server's environment variable for the request log; empty without a path.

    `manifest` is that of the main engine. Raises DeployError `invalid_parameter` for a file that can't be written, and
    for encoders and TensorRT-LLM's C++ backend, which don't support it.
    """
    if path is None:
        return {}
    if manifest.task != "generate":
        raise DeployError(
            "--request-log is for an engine that generates text, and only encoders are served; leave it out.",
            "invalid_parameter",
        )
    if manifest.target == "tensorrt-llm":
        raise DeployError(
            "--request-log is not supported by TensorRT-LLM's C++ backend, in which this engine runs; leave it out.",
            "invalid_parameter",
        )
    try:
        # The same mode as in the engine's model: lines name tenants.
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640))
    except OSError as error:
        raise DeployError(
            f"--request-log {path} can't be written ({error.strerror}); name another file.", "invalid_parameter"
        ) from None
    return {_REQUEST_LOG_VARIABLE: str(path.absolute())}


def check_kv_cache(generator: Manifest | None, tokens: int | None) -> None:
    """Raise DeployError `invalid_parameter` if a KV cache on the processor needs more memory than there is."""
    if generator is None or tokens is None or generator.target != "openvino":
        return
    size, available = kv_budget.bytes_per_token(generator), memory.available_bytes()
    if tokens * size > available:
        raise invalid(
            f"A KV cache of {tokens:,} tokens needs {tokens * size / 1e9:,.3g} GB of memory, and"
            f" {available / 1e9:,.3g} GB are available; lower --kv-cache-tokens to less than {available // size:,}, or"
            " leave it out."
        )


def find_problems(manifest: AnyManifest, machine: Machine, backends: Path) -> Iterator[Problem]:
    """Yield the mismatches between the engine and this machine; `backends` is the directory of Triton's backends."""
    yield from _our_version(manifest)
    if isinstance(manifest, Seq2SeqManifest):
        if find_spec("ctranslate2") is None:
            yield Problem(
                f"The engine {manifest.name} needs the package ctranslate2; say pip install 'inflight[speech]'.",
                "package_missing",
            )
        return
    if manifest.target == "openvino":
        # An encoder's precision is a choice of quality: its vectors must match those that are stored already.
        yield from _precision(manifest) if isinstance(manifest, Manifest) else _longest_text(manifest)
        return
    gpus = visible_gpus(machine.gpus)
    if isinstance(manifest, EncoderManifest):
        yield from _encode(manifest, machine)
        yield from _versions(manifest, machine)
        yield from _gpus(manifest, gpus)
        yield from _gpu_model(manifest, gpus)
        return
    if manifest.target == "tensorrt-llm":
        yield from _backend(manifest, backends)
        yield from _versions(manifest, machine)
    yield from _gpus(manifest, gpus)
    if manifest.target == "tensorrt-llm":
        yield from _gpu_model(manifest, gpus)
        yield from _driver(manifest, gpus)


def visible_gpus(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves; names other than numbers (parts of a GPU) are only counted."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if all(name.isdecimal() for name in names):
        return tuple(gpu for gpu in gpus if str(gpu.index) in names)
    return gpus[: len(names)]


def _our_version(manifest: EngineManifest) -> Iterator[Problem]:
    built = manifest.versions.get("inflight")
    if built and not compatible(built, __version__):
        yield Problem(
            f"The engine {manifest.name} was built by inflight {built} and this is {__version__}; if it does not load,"
            " or answers differently, build it again.",
        )


def _precision(manifest: Manifest) -> Iterator[Problem]:
    processor = find_processor()
    if (better := better_precision(manifest.precision, processor)) is not None:
        yield Problem(
            f"The engine {manifest.name} has {manifest.precision} weights, which are slow on this processor"
            f" ({processor}): {better.reason}. For speed, build it again with --precision {better.precision}.",
        )


def _longest_text(manifest: EncoderManifest) -> Iterator[Problem]:
    """Memory for masks grows with the square of a text's length, and is allocated when such a text comes."""
    if manifest.longest_text_bytes is None:
        return
    needed = manifest.longest_text_bytes + sum(file.bytes for file in manifest.files.values())
    available = memory.available_bytes()
    if needed > available:
        yield Problem(
            f"The engine {manifest.name} needs about {needed / 1e9:.3g} GB of memory for one text of"
            f" {manifest.max_seq_len:,} tokens, and {available / 1e9:.3g} GB are available, so such a text can end the"
            " server; free memory, or build the engine again with a lower --max-seq-len.",
        )


def _backend(manifest: Manifest, backends: Path) -> Iterator[Problem]:
    folder = backends / CPP_BACKEND
    if not folder.is_dir():
        place = container_name(manifest) or "NVIDIA's container with TensorRT-LLM"
        yield Problem(
            f"This Triton has no backend {CPP_BACKEND} ({folder} is missing), which the engine {manifest.name} needs;"
            f" serve it in {place}.",
            "server_not_found",
        )


def _versions(manifest: EngineManifest, here: Machine) -> Iterator[Problem]:
    for key, name in _NAMES.items():
        built, installed = manifest.versions.get(key), here.versions.get(key)
        if built is None:
            continue
        if installed is None:
            place = container_name(manifest) or f"a container with {name} {built}"
            yield Problem(
                f"No {name} was found here to compare with the {built} that compiled the engine; if it does not load,"
                f" serve it in {place}.",
            )
        elif built != installed:
            place = container_name(manifest) or f"a container with {name} {built}"
            yield Problem(
                f"The engine {manifest.name} was compiled by {name} {built}, and {installed} here can't read it;"
                f" serve it in {place}, or build it again here.",
                "engine_incompatible",
            )


def _encode(manifest: EncoderManifest, here: Machine) -> Iterator[Problem]:
    version = here.versions.get("tensorrt_llm", "")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if manifest.target == "llmapi" and numbers and tuple(map(int, numbers.groups())) < _FIRST_WITH_ENCODE:
        yield Problem(
            f"The engine {manifest.name} needs LLM.encode, which TensorRT-LLM {version} here doesn't have; serve it"
            " where 1.3 or later is installed, or build it with --target tensorrt.",
            "engine_incompatible",
        )


def _gpus(manifest: AnyManifest, gpus: tuple[Gpu, ...]) -> Iterator[Problem]:
    needed = world_size(manifest)
    if len(gpus) >= needed:
        return
    # The LLM API itself reports what is missing; it decides on machines without nvidia-smi.
    fatal = bool(gpus) or manifest.target != "llmapi"
    there = f"this machine has {len(gpus)} visible" if gpus else "nvidia-smi lists no GPUs here"
    split, smaller = "", ""
    if isinstance(manifest, Manifest):
        split = f" (tensor parallel {manifest.tensor_parallel}, pipeline parallel {manifest.pipeline_parallel})"
        smaller = ", or build it for fewer"
    yield Problem(
        f"The engine {manifest.name} needs {needed} GPU{'s' if needed > 1 else ''}{split} and {there}; serve it on a"
        f" machine with enough{smaller}.",
        "gpu_missing" if fatal else None,
    )


def _gpu_model(manifest: EngineManifest, gpus: tuple[Gpu, ...]) -> Iterator[Problem]:
    if manifest.machine is None:
        return
    built = manifest.machine
    for gpu in gpus:
        if gpu.compute_capability != built.compute_capability:
            yield Problem(
                f"The engine {manifest.name} was compiled on {built.gpu} (compute capability"
                f" {built.compute_capability}) and GPU {gpu.index} here is {gpu.name}"
                f" ({gpu.compute_capability}), which can't run it; build it again here, or hide that GPU with"
                " CUDA_VISIBLE_DEVICES.",
                "engine_incompatible",
            )
            return
    if manifest.target == "tensorrt" and gpus and gpus[0].name != built.gpu:
        yield Problem(
            f"The engine {manifest.name} was compiled on {built.gpu} and GPU {gpus[0].index} here is {gpus[0].name};"
            " if it does not load, or is slow, build it again here.",
        )


def _driver(manifest: Manifest, gpus: tuple[Gpu, ...]) -> Iterator[Problem]:
    container = containers.container_for(manifest.versions.get("tensorrt_llm", ""))
    if container is None or not gpus or containers.driver_suffices(gpus[0].driver, container.minimum_driver):
        return
    yield Problem(
        f"The driver here is {gpus[0].driver}, and CUDA {container.cuda} of TensorRT-LLM {container.tensorrt_llm} came"
        f" with {container.minimum_driver}; if the server does not start, update the driver (GPUs for data centres may"
        " do with an older one).",
    )
