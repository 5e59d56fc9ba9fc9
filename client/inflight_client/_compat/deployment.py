"""A deployment as the client talks to it: which tensors it is asked with, and how its answers are read.

TensorRT-LLM's tensors come in several versions: what a deployment can do is read from its models' metadata, tensor by
tensor, and from their configurations where the server hands these out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from inflight_client._compat import tensor_names
from inflight_client._compat.tensor_names import TensorNames
from inflight_client.call import Call
from inflight_client.errors import InflightError

Kind = Literal["inflight", "tensorrtllm", "llmapi"]
Tensors = Mapping[str, tuple[str, tuple[int, ...]]]

_DISPLAY_NAMES = {
    "inflight": "inflight's model",
    "tensorrtllm": "TensorRT-LLM's model",
    "llmapi": "the LLM API's model",
}


@dataclass(frozen=True)
class Deployment:
    """A model that takes text, what it has, and the models behind it.

    `decoupled` says whether it streams, `version` which inflight made it; `build` is the same for the same engine,
    tokenizer and template; `served` names the model, its precisions and its limits (empty where the server tells
    nothing of them); `accumulates`: each streamed text is the whole one so far; `adds_special_tokens`: its
    tokenizer puts a BOS token before the prompt. They are None where the server does not tell. `stop_model` takes
    requests to stop; None where none can.
    """

    model: str
    kind: Kind
    inputs: Tensors
    outputs: Tensors
    decoupled: bool | None = None
    version: str | None = None
    accumulates: bool | None = False
    stop_model: str | None = None
    adds_special_tokens: bool | None = None
    build: str | None = None
    served: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def is_inflight(self) -> bool:
        return self.kind == "inflight"

    @property
    def tensor_names(self) -> TensorNames:
        return tensor_names.LLMAPI if self.kind == "llmapi" else tensor_names.TEXT_MODEL

    @property
    def display_name(self) -> str:
        """What messages call it."""
        return f"{_DISPLAY_NAMES[self.kind]} {self.model}"

    def unsupported(self, option: str, why: str) -> InflightError:
        return InflightError(f"{self.display_name} can't honour {option}: {why}", "unsupported_input")

    def streams(self, call: Call) -> bool:
        """Whether the answer comes in pieces: asked for, or so that the first token can be told from the last."""
        if call.stream or call.first_token_timeout is None:
            return call.stream
        return self.decoupled is True and self.accumulates is not None and self.tensor_names.stream in self.inputs

    def is_stop_response(self, error: InflightError) -> bool:
        """Whether an error is this deployment's way to answer a request to stop: the LLM API knows no other."""
        return error.code == "cancelled" or "cancelled by client" in str(error)
