"""Checks paths that quantize.py would misread, and calibration datasets."""

from __future__ import annotations

import os
from pathlib import Path

from build_engines.capabilities.tensorrt_llm import Architecture
from build_engines.errors import BuildError
from build_engines.tensorrt_llm.recipe import Recipe

# It detects MPT and VILA by the letters of the path (quantize_by_modelopt.py, get_hf_config).
_MODELS = {"mpt": "mpt", "vila": "vila", "llava-onevision-qwen2": "llava"}
_HUB = "cnn_dailymail"
# Datasets with special columns and splits, detected by name (quantize_by_modelopt.py, get_calib_dataloader).
_DATASETS = (_HUB, "pileval", "scienceqa", "science_qa")


def check_path(recipe: Recipe, architecture: Architecture, directory: Path) -> None:
    """Raise BuildError (`invalid_parameter`) for the path of a checkpoint that quantize.py would misread."""
    if not recipe.needs_calibration:
        return
    path = str(directory.resolve())
    for letters, name in _MODELS.items():
        if letters in path and name not in architecture.name.lower():
            raise BuildError(
                f"quantize.py treats a path with {letters!r} as a model of that kind; move {path}.",
                "invalid_parameter",
            )


def check_calibration(recipe: Recipe) -> None:
    """Raise BuildError (`invalid_parameter`) if the calibration dataset is missing or would be misread."""
    dataset = recipe.calibration.dataset
    if not recipe.needs_calibration:
        return
    if os.path.isdir(dataset):
        _check_texts(os.path.realpath(dataset))
    elif _HUB not in dataset:
        raise BuildError(
            f"calibration.dataset {dataset} is not a directory, and only {_HUB} can be downloaded; check the path.",
            "invalid_parameter",
        )
    elif os.environ.get("HF_HUB_OFFLINE") == "1":
        raise BuildError(
            f"calibration.dataset {dataset} can't be downloaded, since HF_HUB_OFFLINE is set; give a dataset directory"
            " whose train split has a text column.",
            "invalid_parameter",
        )


def _check_texts(path: str) -> None:
    for name in _DATASETS:
        if name in path.lower():
            raise BuildError(
                f"quantize.py treats a path with {name!r} as that dataset; move {path}.",
                "invalid_parameter",
            )
