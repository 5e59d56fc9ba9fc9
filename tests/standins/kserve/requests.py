"""Requests as the models get them, checked against their tensors as Triton's core checks them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.standins.kserve.repository import ModelSpec

_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each"
    " input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting"
    " max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


class RefusedError(Exception):
    """What Triton or a model answers instead: its words, and the name of TRITONSERVER's error code."""

    def __init__(self, words: str, code: str = "INVALID_ARG") -> None:
        super().__init__(words)
        self.code = code


@dataclass(frozen=True)
class InputTensor:
    datatype: str
    shape: tuple[int, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True)
class ModelRequest:
    """A request to one model; `cancelled` is set when its client has gone."""

    model: ModelSpec
    id: str
    inputs: Mapping[str, InputTensor]
    outputs: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def value(self, name: str, default: Any = None) -> Any:
        """The first value of an input."""
        return self.inputs[name].values[0] if name in self.inputs else default

    def check(self) -> None:
        """Raises RefusedError for what is not of the model's tensors."""
        model = self.model
        for name in self.inputs:
            if name not in model.inputs:
                raise RefusedError(f"unexpected inference input '{name}' for model '{model.name}'")
        missing = [name for name, tensor in model.inputs.items() if not tensor.optional and name not in self.inputs]
        if missing:
            raise RefusedError(self._missing(missing))
        for name in self.outputs:
            if name not in model.outputs:
                raise RefusedError(f"unexpected inference output '{name}' for model '{model.name}'")
        for name, given in self.inputs.items():
            self._check_tensor(name, given)

    def _check_tensor(self, name: str, given: InputTensor) -> None:
        wanted = self.model.inputs[name]
        where = f"[request id: {self.id or '<id_unknown>'}] "
        if given.datatype != wanted.datatype:
            raise RefusedError(
                f"{where}inference input '{name}' data-type is '{given.datatype}', but model '{self.model.name}'"
                f" expects '{wanted.datatype}'"
            )
        full = self.model.shape(wanted)
        if len(given.shape) != len(full) or any(
            size not in (-1, found) for size, found in zip(full, given.shape, strict=True)
        ):
            note = _BATCH_NOTE if self.model.max_batch_size else ""
            raise RefusedError(
                f"{where}unexpected shape for input '{name}' for model '{self.model.name}'. Expected"
                f" {_dims(full)}, got {_dims(given.shape)}. {note}"
            )

    def _missing(self, missing: list[str]) -> str:
        required = sum(not tensor.optional for tensor in self.model.inputs.values())
        names = ",".join(f"'{name}'" for name in self.inputs)
        return (
            f"[request id: {self.id or '<id_unknown>'}] expected number of inputs between {required} and"
            f" {len(self.model.inputs)} but got {len(self.inputs)} inputs for model '{self.model.name}'. Got input(s)"
            f" [{names}], but missing required input(s) [{','.join(map(repr, missing))}]. Please provide all required"
            " input(s)."
        )


def _dims(shape: Any) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
