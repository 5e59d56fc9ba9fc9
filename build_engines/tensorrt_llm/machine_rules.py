"""What of a recipe this machine, or the container on it, can't build."""

from __future__ import annotations

import os
from collections.abc import Iterator

from build_engines.containers import DEFAULT_CONTAINER, ENGINE_LINE, version_line
from build_engines.errors import BuildError
from build_engines.machine import Gpu, Machine
from build_engines.tensorrt_llm.recipe import Recipe

# The support matrix of TensorRT-LLM 1.x begins with Ampere.
_OLDEST = (8, 0)
_FP8 = (8, 9)
_BLACKWELL = (10, 0)
_HOPPER = (9, 0)


def check_machine(recipe: Recipe, machine: Machine, where: str) -> None:
    """Raise BuildError where `machine` can't build `recipe`; `where` says what was looked at.

    The code is `package_missing` without TensorRT-LLM, `invalid_parameter` for a version or a GPU that doesn't fit.
    """
    _check_software(machine, where)
    for sentence in (*_gpus(recipe, machine, where), *_features(recipe, machine.gpus[0] if machine.gpus else None)):
        raise BuildError(sentence, "invalid_parameter")


def check_calibration(recipe: Recipe) -> None:
    """Raise BuildError (`invalid_parameter`) where texts to calibrate with can't be had."""
    dataset = recipe.calibration.dataset
    if not recipe.needs_calibration or os.path.isdir(dataset):
        return
    if "cnn_dailymail" not in dataset:
        raise BuildError(
            f"calibration.dataset {dataset} is no directory, and cnn_dailymail is the only one that is fetched; "
            "check the path.",
            "invalid_parameter",
        )
    if os.environ.get("HF_HUB_OFFLINE") == "1":
        raise BuildError(
            f"calibration.dataset {dataset} is fetched from the hub, and HF_HUB_OFFLINE is set; name a directory with "
            "a train split that has a text column.",
            "invalid_parameter",
        )


def _check_software(machine: Machine, where: str) -> None:
    found = machine.software.tensorrt_llm
    if found is None:
        raise BuildError(
            f"There is no TensorRT-LLM in {where}; run inflight in {DEFAULT_CONTAINER.image}, or give --docker.",
            "package_missing",
        )
    if version_line(found) != ENGINE_LINE:
        raise BuildError(
            f"TensorRT-LLM {found} is in {where}, and engines are built with {ENGINE_LINE}; use "
            f"{DEFAULT_CONTAINER.image}, or build with --target llmapi.",
            "invalid_parameter",
        )


def _gpus(recipe: Recipe, machine: Machine, where: str) -> Iterator[str]:
    if not machine.gpus:
        yield (
            f"nvidia-smi finds no GPU in {where}, and trtllm-build measures its kernels on one; --dry-run prints the "
            "commands for a machine that has one."
        )
    kinds = sorted({gpu.compute_capability for gpu in machine.gpus})
    if len(kinds) > 1:
        yield (
            f"The GPUs in {where} are of compute capability {' and '.join(kinds)}, and an engine runs on one kind "
            "alone; choose one with CUDA_VISIBLE_DEVICES, or with --docker-gpus device=0."
        )
    if recipe.workers > len(machine.gpus) > 0:
        yield f"workers {recipe.workers} is more than the {len(machine.gpus)} GPUs in {where}; lower it."


def _features(recipe: Recipe, gpu: Gpu | None) -> Iterator[str]:
    if gpu is None:
        return
    said = f"{gpu.name} has compute capability {gpu.compute_capability}"
    capability = _numbers(gpu)
    if capability < _OLDEST:
        yield f"{said}, and TensorRT-LLM {ENGINE_LINE} begins with 8.0; choose another GPU."
    if capability < _FP8:
        if recipe.quantization in ("fp8", "w4a8_awq"):
            yield f"{said}, and quantization {recipe.quantization} begins with 8.9; choose int8_sq or int4_awq."
        if recipe.kv_cache_dtype == "fp8":
            yield f"{said}, and kv_cache_dtype fp8 begins with 8.9; choose int8 or auto."
    if capability < _BLACKWELL and recipe.quantization == "nvfp4":
        yield f"{said}, and quantization nvfp4 begins with 10.0 (Blackwell); choose fp8 or int4_awq."
    plugins = recipe.plugins
    if plugins.gemm_swiglu != "disable" and capability != _HOPPER:
        yield f"{said}, and plugins.gemm_swiglu is for 9.0 (Hopper); leave it out."
    for name in ("low_latency_gemm", "low_latency_gemm_swiglu"):
        if getattr(plugins, name) != "disable" and capability == _BLACKWELL:
            yield f"{said}, and plugins.{name} has no kernel there; leave it out."


def _numbers(gpu: Gpu) -> tuple[int, ...]:
    return tuple(int(part) for part in gpu.compute_capability.split("."))
