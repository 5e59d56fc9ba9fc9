"""Reads a model's shape and number of parameters from a checkpoint or only its config.json."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from build_engines.checkpoints.checkpoint import checkpoint_directory, map_read_errors, read_config_file, read_json
from build_engines.plan.parameters import ParameterCounts, count_parameters, count_stored_parameters, with_total
from build_engines.plan.shape import ModelShape, read_shape

_INDEX = "model.safetensors.index.json"
# ModelOpt's file beside weights that it quantized; config.json may not mention the quantization.
_MODELOPT = "hf_quant_config.json"
# A smaller difference between files and shape comes from a few buffers.
_TOLERANCE = 0.01


@dataclass(frozen=True)
class PlannedModel:
    """A model to plan. `counted_from` is the source of the number of parameters; `notes` are sentences for the user;
    `config` is the parsed config.json."""

    where: str
    shape: ModelShape
    parameters: ParameterCounts
    counted_from: str
    notes: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict, repr=False)


def read_model(path: Path) -> PlannedModel:
    """Return the model of the checkpoint directory `path` (or its config.json), with the weights' headers only.

    Parameters are counted from the weight files if all exist, otherwise from the shape. Raises BuildError:
    `checkpoint_not_found`, `not_a_checkpoint`, `checkpoint_damaged`, `unsupported_architecture`.
    """
    with map_read_errors(path):
        directory = checkpoint_directory(path)
        content = read_config_file(directory)
        return replace(_counted(read_shape(content, str(directory)), directory), config=content)


def _counted(shape: ModelShape, directory: Path) -> PlannedModel:
    parameters = count_parameters(shape)
    if (directory / _MODELOPT).is_file():
        shape = replace(shape, quantized=shape.quantized or "modelopt")
    if shape.quantized:
        return PlannedModel(str(directory), shape, parameters, "config.json")
    weights = _weights(directory)
    if not weights:
        return PlannedModel(str(directory), shape, parameters, "config.json")
    total = count_stored_parameters(weights, shape.tied)
    notes: tuple[str, ...] = ()
    if abs(total - parameters.total) > _TOLERANCE * parameters.total:
        notes = (
            f"The weight files hold {total:,} parameters and config.json describes {parameters.total:,}; "
            "the plan uses the files.",
        )
    return PlannedModel(str(directory), shape, with_total(parameters, total), "weight files", notes)


def stored_parameters(directory: Path) -> int | None:
    """Return the number of parameters in the weight files of a checkpoint, None if one is missing."""
    weights = _weights(directory)
    return count_stored_parameters(weights, tied=True) if weights else None


def _weights(directory: Path) -> list[Path]:
    """Return all weight files, or [] if one is missing."""
    index = directory / _INDEX
    if index.is_file():
        places = read_json(index).get("weight_map")
        names = sorted({str(name) for name in places.values()}) if isinstance(places, dict) else []
        files = [directory / name for name in names]
    else:
        files = [directory / "model.safetensors"]
    return files if all(file.is_file() for file in files) else []
