"""Models as published: their shapes and parameters."""

from __future__ import annotations

from build_engines.plan.parameters import ParameterCounts, count_parameters
from build_engines.plan.shape import ModelShape, read_shape
from tests.build_engines.plan.published import SHAPES


def shape_of(model: str) -> ModelShape:
    return read_shape(SHAPES[model], model)


def parameters_of(model: str) -> ParameterCounts:
    return count_parameters(shape_of(model))
