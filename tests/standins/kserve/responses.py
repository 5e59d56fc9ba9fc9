"""What the models answer with, before it becomes a message of either protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class OutputTensor:
    """An output of a response, of the type that it really has, whatever the configuration says."""

    datatype: str
    shape: tuple[int, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True)
class ModelResponse:
    """Outputs, and Triton's flag for the last response. Without `outputs_sent` the flag comes by itself."""

    outputs: Mapping[str, OutputTensor] = field(default_factory=dict)
    final: bool = False
    outputs_sent: bool = True


def flag_only() -> ModelResponse:
    """The flag without a response, of which neither protocol shows anything unless asked to."""
    return ModelResponse(final=True, outputs_sent=False)


def texts(*values: str) -> OutputTensor:
    """In one dimension, as postprocessing and the LLM API's model have them."""
    return OutputTensor("BYTES", (len(values),), values)


def one(datatype: str, value: Any) -> OutputTensor:
    return OutputTensor(datatype, (1, 1), (value,))
