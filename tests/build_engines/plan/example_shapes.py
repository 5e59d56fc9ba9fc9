"""Reads the shape of a model from a config."""

from __future__ import annotations

from typing import Any

from build_engines.plan.shape import ModelShape, read_shape
from tests.build_engines.plan.published import SHAPES


def read(model: str, **changes: Any) -> ModelShape:
    """The shape of a published config with some fields changed, and without those that are set to ..."""
    config = SHAPES[model] | changes
    return read_shape({name: value for name, value in config.items() if value is not ...}, "./my-model")
