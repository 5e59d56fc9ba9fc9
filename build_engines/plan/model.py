"""From a checkpoint, or its config.json alone, to the model's shape and number of parameters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from build_engines.checkpoints.checkpoint import find_config, map_read_errors, read_json
from build_engines.plan.parameters import ParameterCounts, count_parameters, count_stored_parameters, with_total
from build_engines.plan.shape import ModelShape, read_shape

_INDEX = "model.safetensors.index.json"
# What ModelOpt writes beside the weights that it has quantized; config.json may say nothing of it.
_MODELOPT = "hf_quant_config.json"
# Files that differ by less hold the shape's parameters and a buffer or two.
_TOLERANCE = 0.01


@dataclass(frozen=True)
class PlannedModel:
    """`counted` says where the number of parameters comes from; `notes` are sentences for the user. `config` is the
    parsed config.json."""

    where: str
    shape: ModelShape
    parameters: ParameterCounts
    counted_from: str
    notes: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict, repr=False)


def read_model(path: Path) -> PlannedModel:
    """Read the checkpoint directory `path` (or its config.json): milliseconds, weights by their headers only.

    Weights are counted where they are all there, else by the shape. Raises BuildError: `checkpoint_not_found`,
    `not_a_checkpoint`, `checkpoint_damaged`, `unsupported_architecture`.
    """
    with map_read_errors(path):
        directory = path.parent if path.name == "config.json" and path.is_file() else path
        content = read_json(find_config(directory))
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
            f"The weight files hold {total:,} parameters where config.json describes {parameters.total:,}; "
            "the plan goes by the files.",
        )
    return PlannedModel(str(directory), shape, with_total(parameters, total), "weight files", notes)


def _weights(directory: Path) -> list[Path]:
    """All weight files, or none of them where one is missing."""
    index = directory / _INDEX
    if index.is_file():
        places = read_json(index).get("weight_map")
        names = sorted({str(name) for name in places.values()}) if isinstance(places, dict) else []
        files = [directory / name for name in names]
    else:
        files = [directory / "model.safetensors"]
    return files if all(file.is_file() for file in files) else []
