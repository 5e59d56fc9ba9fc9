"""Checks whether this machine, or the container on it, can build a recipe, and what quantize.py reads there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from build_engines.capabilities.tensorrt_llm import MIN_CAPABILITY, Architecture, is_computed
from build_engines.containers import DEFAULT_CONTAINER, ENGINE_LINE, version_line
from build_engines.errors import BuildError, invalid
from build_engines.machine import Gpu, Machine
from build_engines.tensorrt_llm.recipe import Recipe

# The support matrix of TensorRT-LLM 1.x begins with Ampere.
_OLDEST = (8, 0)
_BLACKWELL = (10, 0)
_HOPPER = (9, 0)
# quantize.py detects MPT and VILA by the letters of the path (quantize_by_modelopt.py, get_hf_config).
_NAMED_MODELS = {"mpt": "mpt", "vila": "vila", "llava-onevision-qwen2": "llava"}
_CNN = "cnn_dailymail"
# Datasets with special columns and splits, detected by name (quantize_by_modelopt.py, get_calib_dataloader).
_NAMED_DATASETS = (_CNN, "pileval", "scienceqa", "science_qa")


def check_machine(recipe: Recipe, machine: Machine, where: str) -> None:
    """Raise BuildError if `machine` can't build `recipe`; `where` names the machine or container.

    The code is `package_missing` without TensorRT-LLM, `invalid_parameter` for an unsuitable version or GPU.
    """
    _check_software(machine, where)
    for sentence in (*_gpus(recipe, machine, where), *_features(recipe, machine.gpus[0] if machine.gpus else None)):
        raise invalid(sentence)


def _check_software(machine: Machine, where: str) -> None:
    version = machine.versions.get("tensorrt_llm")
    if version is None:
        raise BuildError(
            f"There is no TensorRT-LLM in {where}; run inflight in {DEFAULT_CONTAINER.image}, or pass --docker.",
            "package_missing",
        )
    if version_line(version) != ENGINE_LINE:
        raise invalid(
            f"{where} has TensorRT-LLM {version}, but engines are built with {ENGINE_LINE}; use "
            f"{DEFAULT_CONTAINER.image}, or build with --target llmapi."
        )


def _gpus(recipe: Recipe, machine: Machine, where: str) -> Iterator[str]:
    if not machine.gpus:
        yield (
            f"nvidia-smi finds no GPU in {where}, which trtllm-build needs to tune kernels; --dry-run prints the"
            " commands for a machine with one."
        )
    if sentence := machine.several_kinds(where):
        yield sentence
    if recipe.workers > len(machine.gpus) > 0:
        yield f"workers {recipe.workers} is more than the {len(machine.gpus)} GPUs in {where}; lower it."


def _features(recipe: Recipe, gpu: Gpu | None) -> Iterator[str]:
    if gpu is None:
        return
    gpu_capability = f"{gpu.name} has compute capability {gpu.compute_capability}"
    capability = _numbers(gpu)
    if capability < _OLDEST:
        yield f"{gpu_capability}, but TensorRT-LLM {ENGINE_LINE} needs 8.0; choose another GPU."
    for name, precision in (("quantization", recipe.quantization), ("kv_cache_dtype", recipe.kv_cache_dtype)):
        if not is_computed(precision, capability):
            begin = MIN_CAPABILITY.get(precision, _OLDEST)
            why = f"needs {begin[0]}.{begin[1]}" if capability < begin else "is not supported there by trtllm-build"
            yield f"{gpu_capability}, but {name} {precision} {why}; choose {', '.join(_others(name, capability))}."
    plugins = recipe.plugins
    if plugins.gemm_swiglu != "disable" and capability != _HOPPER:
        yield f"{gpu_capability}, but plugins.gemm_swiglu is for 9.0 (Hopper); leave it out."
    for name in ("low_latency_gemm", "low_latency_gemm_swiglu"):
        if getattr(plugins, name) != "disable" and capability == _BLACKWELL:
            yield f"{gpu_capability}, but plugins.{name} has no kernel there; leave it out."


def _others(name: str, capability: tuple[int, ...]) -> Iterator[str]:
    annotation = Recipe.model_fields[name].annotation
    return (value for value in get_args(annotation) if is_computed(value, capability))


def _numbers(gpu: Gpu) -> tuple[int, ...]:
    return tuple(int(part) for part in gpu.compute_capability.split("."))


def check_path(recipe: Recipe, architecture: Architecture, directory: Path) -> None:
    """Raise BuildError (`invalid_parameter`) for the path of a checkpoint that quantize.py would misread."""
    if not recipe.needs_calibration:
        return
    path = str(directory.resolve())
    for letters, name in _NAMED_MODELS.items():
        if letters in path and name not in architecture.name.lower():
            raise invalid(f"quantize.py treats a path with {letters!r} as a model of that kind; move {path}.")


def check_calibration(recipe: Recipe) -> None:
    """Raise BuildError (`invalid_parameter`) if the calibration dataset is missing or would be misread."""
    dataset = recipe.calibration.dataset
    if not recipe.needs_calibration:
        return
    if os.path.isdir(dataset):
        _check_texts(os.path.realpath(dataset))
    elif _CNN not in dataset:
        raise invalid(
            f"calibration.dataset {dataset} is not a directory, and only {_CNN} can be downloaded; check the path."
        )
    elif os.environ.get("HF_HUB_OFFLINE") == "1":
        raise invalid(
            f"calibration.dataset {dataset} can't be downloaded, since HF_HUB_OFFLINE is set; give a dataset directory"
            " whose train split has a text column."
        )


def _check_texts(path: str) -> None:
    for name in _NAMED_DATASETS:
        if name in path.lower():
            raise invalid(f"quantize.py treats a path with {name!r} as that dataset; move {path}.")
