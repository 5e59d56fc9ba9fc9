"""A deployment as the client talks to it: which tensors it is asked with, and how its answers are read.

TensorRT-LLM's tensors come in several versions: what a deployment can do is read from its models' metadata, tensor by
tensor, and from their configurations where the server hands these out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from inflight_client import tensor_names
from inflight_client.answer import Answer
from inflight_client.call import Call
from inflight_client.errors import InflightError
from inflight_client.request_inputs import RequestInputs
from inflight_client.tensor_names import TIMES, TensorNames
from inflight_client.transport import InferRequest, Tensor
from inflight_client.versions import client_version

if TYPE_CHECKING:
    from inflight_client.chat_template import ChatTemplate

Kind = Literal["inflight", "tensorrtllm", "llmapi"]
Tensors = Mapping[str, tuple[str, tuple[int, ...]]]

_WORDS = {"inflight": "inflight's model", "tensorrtllm": "TensorRT-LLM's model", "llmapi": "the LLM API's model"}


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
    def ours(self) -> bool:
        return self.kind == "inflight"

    @property
    def names(self) -> TensorNames:
        return tensor_names.LLMAPI if self.kind == "llmapi" else tensor_names.TEXT_MODEL

    @property
    def words(self) -> str:
        """What messages call it."""
        return f"{_WORDS[self.kind]} {self.model}"

    def unsupported(self, option: str, why: str) -> InflightError:
        return InflightError(f"{self.words} can't honour {option}: {why}", "unsupported_input")

    def streams(self, call: Call) -> bool:
        """Whether the answer comes in pieces: asked for, or so that the first token can be told from the last."""
        if call.stream or call.first_token_timeout is None:
            return call.stream
        return self.decoupled is True and self.accumulates is not None and self.names.stream in self.inputs

    def request(
        self, call: Call, request_id: str, seconds_left: float | None, template: ChatTemplate | None
    ) -> InferRequest:
        """The call as this deployment takes it. Raises Unsupported for what it lacks, and no_chat_template."""
        inputs = RequestInputs(self)
        inputs.add_call(call, seconds_left, template)
        return InferRequest(
            self.model,
            request_id,
            inputs.tensors,
            self._wanted(call, inputs.tensors),
            self._parameters(call),
            {"traceparent": call.traceparent} if call.traceparent else {},
        )

    def answer(self, call: Call) -> Answer:
        """What reads the responses to the call's request."""
        if self.ours:
            return Answer(self, call)
        from inflight_client.foreign_answer import ForeignAnswer

        return ForeignAnswer(self, call)

    def stop_request(self, request_id: str) -> InferRequest:
        """A request that ends those of that id. Raises Unsupported where ids reach no engine."""
        if self.stop_model is None:
            raise self.unsupported("cancel", "it gives its engine ids of its own; close the stream instead")
        if self.stop_model == self.model:
            inputs = RequestInputs(self)
            inputs.add("text_input", "")
            if self.kind != "llmapi":
                inputs.add("max_tokens", 1)
            inputs.add("stop", True)
            return InferRequest(self.model, request_id, inputs.tensors)
        # What the engine's model takes no request without, and does not read; it has batches where this one has them.
        shape = (1,) * len(self.inputs["text_input"][1])
        needed = {name: Tensor("INT32", shape, (1,)) for name in ("input_lengths", "request_output_len")}
        stop = {"input_ids": Tensor("INT32", shape, (0,)), **needed, "stop": Tensor("BOOL", shape, (True,))}
        return InferRequest(self.stop_model, request_id, stop)

    def stopped(self, error: InflightError) -> bool:
        """Whether an error is this deployment's way to answer a request to stop: the LLM API knows no other."""
        return error.code == "cancelled" or "cancelled by client" in str(error)

    def _wanted(self, call: Call, inputs: Mapping[str, Tensor]) -> tuple[str, ...]:
        wanted = ["text_output", "finish_reason", "num_input_tokens", "num_output_tokens"]
        if self.ours:
            wanted.append("num_responses")
        if "return_stop_reason" in inputs:
            wanted.append("stop_reason")
        if "return_token_ids" in inputs:
            wanted.append("token_ids")
        if call.return_log_probs:
            wanted += ["output_log_probs", "cum_log_probs"]
        if call.return_perf_metrics:
            wanted += TIMES
        return tuple(name for name in wanted if name in self.outputs)

    def _parameters(self, call: Call) -> dict[str, str | int | bool]:
        if not self._knows_parameters:
            if call.tenant:
                raise self.unsupported("tenant", "it keeps no account of tenants; leave it out")
            return {}
        given = {"tenant": call.tenant, "traceparent": call.traceparent, "inflight_client": client_version()}
        return {name: value for name, value in given.items() if value}

    @cached_property
    def _knows_parameters(self) -> bool:
        """They came with these tensors; servers of ours that are older refuse them."""
        return self.ours and "num_responses" in self.outputs
