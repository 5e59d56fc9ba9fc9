"""A request to `tensorrt_llm` as Triton hands it to a model: arrays by name, where no Triton runs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from inflight.runtime.triton.inputs import Inputs


class _Tensor(NamedTuple):
    label: str
    array: Any

    def name(self) -> str:
        return self.label

    def as_numpy(self) -> Any:
        return self.array


class _Request(NamedTuple):
    tensors: list[_Tensor]

    def inputs(self) -> list[_Tensor]:
        return self.tensors


def inputs_of(**arrays: Any) -> Inputs:
    """What is read of a request that holds these arrays."""
    return Inputs(_Request([_Tensor(name, np.asarray(array)) for name, array in arrays.items()]))


def engine_inputs(prompts: int = 1, **arrays: Any) -> Inputs:
    """Those of a request with so many prompts of two tokens each, and more."""
    needed = {
        "input_ids": np.full((prompts, 2), 5, np.int32),
        "input_lengths": np.full(prompts, 2, np.int32),
        "request_output_len": np.full(prompts, 4, np.int32),
    }
    return inputs_of(**{**needed, **arrays})
