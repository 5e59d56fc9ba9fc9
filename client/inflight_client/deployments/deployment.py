"""A deployment as the client sees it: the tensors of its requests and the form of its answers.

TensorRT-LLM's tensors differ between versions. What a deployment supports is read from its models' metadata, tensor by
tensor, and from their configurations if the server returns them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from inflight_client.call import Call
from inflight_client.deployments import tensor_names
from inflight_client.deployments.tensor_names import TensorNames
from inflight_client.errors import InflightError

Kind = Literal["inflight", "tensorrtllm", "llmapi", "openai"]
Tensors = Mapping[str, tuple[str, tuple[int, ...]]]

_DISPLAY_NAMES = {
    "inflight": "inflight's model",
    "tensorrtllm": "TensorRT-LLM's model",
    "llmapi": "the LLM API's model",
    "openai": "the server's model",
}


@dataclass(frozen=True)
class Deployment:
    """A model that accepts text, or token ids, with its tensors (none of a gateway's model) and properties.

    `decoupled`: it streams; `version`: of the inflight that deployed it; `build`: equal for the same engine,
    tokenizer and template; `served`: the model, its precisions and its limits (empty if unknown);
    `accumulates`: each streamed text is the whole text so far; `adds_special_tokens`: its tokenizer adds a
    BOS token before the prompt. Values that the server does not report are unset (None). `stop_model` accepts
    stop requests; without it requests can't be cancelled by id.
    """

    model: str
    kind: Kind
    inputs: Tensors = field(default_factory=dict)
    outputs: Tensors = field(default_factory=dict)
    decoupled: bool | None = None
    version: str | None = None
    accumulates: bool | None = False
    stop_model: str | None = None
    adds_special_tokens: bool | None = None
    build: str | None = None
    served: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_inflight(self) -> bool:
        return self.kind == "inflight"

    @property
    def tensor_names(self) -> TensorNames:
        if self.speaks_tokens:
            return tensor_names.TOKEN_MODEL
        return tensor_names.LLMAPI if self.kind == "llmapi" else tensor_names.TEXT_MODEL

    @property
    def speaks_tokens(self) -> bool:
        """Whether the model takes and returns token ids."""
        return "output_ids" in self.outputs

    @property
    def takes_priority(self) -> bool:
        """Whether requests may have a priority."""
        return self.kind == "openai" or "priority" in self.inputs

    @property
    def display_name(self) -> str:
        """The name in messages."""
        return f"{_DISPLAY_NAMES[self.kind]} {self.model}"

    def unsupported(self, option: str, why: str) -> InflightError:
        return InflightError(f"{self.display_name} does not support {option}: {why}", "unsupported_input")

    def streams(self, call: Call) -> bool:
        """Return whether the answer is streamed: on request, or to enforce the first token's deadline."""
        if self.kind == "openai":
            return True  # also for a whole answer, so that leaving it cancels the request
        if call.stream or call.first_token_timeout is None:
            return call.stream
        return self.decoupled is True and self.accumulates is not None and self.tensor_names.stream in self.inputs

    def is_stop_response(self, error: InflightError) -> bool:
        """Return whether an error is the reply to a stop request; the LLM API has no other reply."""
        return error.code == "cancelled" or "cancelled by client" in str(error)
