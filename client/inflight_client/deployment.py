"""Which deployment a server has, and how it is talked to: found out by questions that whoever asks carries.

TensorRT-LLM's tensors come in several versions: what a deployment can do is read from its models' metadata, tensor by
tensor, and from their configurations where the server hands these out.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from inflight_client import tensor_names
from inflight_client.answer import Answer
from inflight_client.call import Call
from inflight_client.errors import InflightError
from inflight_client.model_config import ModelConfig
from inflight_client.request_inputs import RequestInputs
from inflight_client.tensor_names import TIMES, TensorNames
from inflight_client.transport import InferRequest, ModelMetadata, Tensor
from inflight_client.versions import client_version

if TYPE_CHECKING:
    from inflight_client.chat_template import ChatTemplate

Kind = Literal["inflight", "tensorrtllm", "llmapi"]
Tensors = Mapping[str, tuple[str, tuple[int, ...]]]

TEXT_MODELS = ("ensemble", "tensorrt_llm_bls", "tensorrt_llm")
"""Where text is sent to, by upstream's names; the first that is there."""

_FOR_OUR_ENGINES = ("priority", "deadline_ms")
_WORDS = {"inflight": "inflight's model", "tensorrtllm": "TensorRT-LLM's model", "llmapi": "the LLM API's model"}
REFUSALS = ("permission_denied", "invalid_request", "model_not_found", "unsupported_input", "unsupported_deployment")
"""What a server answers that hands out no configurations or no index, or has no such calls."""


class Question(NamedTuple):
    """A question to the server: a method of Transport, and the model that it is about."""

    method: str
    argument: str = ""


Asking = Generator[Question, Any, Any]


@dataclass(frozen=True)
class Deployment:
    """A model that takes text, what it has, and the models behind it.

    `decoupled` says whether it streams, `version` which inflight made it; both are None where the server does not tell.
    `accumulates`: each streamed text is the whole one so far. `stop_model` takes requests to stop; None where none can.
    `adds_special_tokens`: whether its tokenizer puts a BOS token before the prompt; None where that is not known.
    """

    model: str
    kind: Kind
    inputs: Tensors
    outputs: Tensors
    decoupled: bool | None = None
    version: str | None = None
    accumulates: bool = False
    stop_model: str | None = None
    adds_special_tokens: bool | None = None

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

    @property
    def renders_messages(self) -> bool:
        return "messages" in self.inputs

    def unsupported(self, option: str, why: str) -> InflightError:
        return InflightError(f"{self.words} can't honour {option}: {why}", "unsupported_input")

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


def detect(model: str | None) -> Generator[Question, Any, Deployment]:
    """Find the model that takes text, or look at the named one.

    Yields questions and is sent the answers; what the server refuses is thrown in. Raises InflightError
    (`unsupported_deployment`, and whatever of `model_not_ready`, `server_gone`, ... is thrown in and can't be helped).
    """
    metadata = yield from (_find() if model is None else _named(model))
    kind = _kind(metadata)
    config = yield from _config(metadata.name)
    steps = []
    if kind != "inflight":  # of ours it is known what stands behind them
        for step in config.steps:
            steps.append((yield from _config(step)))
    engine = next((step for step in steps if {"stop", "input_ids"} <= step.inputs), None)
    special = [step.flag("add_special_tokens") for step in steps if "QUERY" in step.inputs]
    return Deployment(
        metadata.name,
        kind,
        _honoured(metadata, config),
        metadata.outputs,
        _decoupled(config, steps),
        config.parameter("inflight_version") or None,
        bool(config.flag("accumulate_tokens")),
        _stop_model(metadata, kind, config, engine),
        special[0] if special else None,
    )


def _find() -> Generator[Question, Any, ModelMetadata]:
    """The metadata of the first text model that is ready."""
    try:
        models = yield Question("index")
        ready = [model.name for model in models if model.ready]
        names = [name for name in TEXT_MODELS if name in ready]
        found = ", ".join(sorted({model.name for model in models})) or "none"
        if not names:
            names = [name for name in TEXT_MODELS if name in {model.name for model in models}]
    except InflightError as error:
        if error.code not in REFUSALS:
            raise
        names, found = list(TEXT_MODELS), "unknown, since it hands out no index"
    failure: InflightError | None = None
    for name in names:
        try:
            metadata = yield Question("metadata", name)
        except InflightError as error:
            if error.code not in ("model_not_ready", "model_not_found"):
                raise
            if failure is None or error.code == "model_not_ready":
                failure = error
            continue
        if _takes_text(metadata):
            return metadata  # type: ignore[no-any-return]
    if failure is not None and failure.code == "model_not_ready":
        raise failure
    raise InflightError(
        f"the server has none of the models {', '.join(TEXT_MODELS)} with text as its input (its models: {found});"
        " name the model that takes text",
        "unsupported_deployment",
    )


def _named(model: str) -> Generator[Question, Any, ModelMetadata]:
    metadata = yield Question("metadata", model)
    if not _takes_text(metadata):
        raise InflightError(
            f"the model {model} takes no text as TensorRT-LLM's models do (its inputs:"
            f" {', '.join(sorted(metadata.inputs)) or 'none'}); name the model that takes text",
            "unsupported_deployment",
        )
    return metadata  # type: ignore[no-any-return]


def _config(model: str) -> Generator[Question, Any, ModelConfig]:
    """The model's configuration; an empty one where the server keeps it to itself."""
    try:
        answer = yield Question("config", model)
    except InflightError as error:
        if error.code not in REFUSALS:
            raise
        return ModelConfig()
    return ModelConfig(answer)


def _takes_text(metadata: ModelMetadata) -> bool:
    given = metadata.inputs.keys()
    return (
        "text_input" in given
        and bool({tensor_names.TEXT_MODEL.max_tokens, tensor_names.LLMAPI.max_tokens} & given)
        and "text_output" in metadata.outputs
    )


def _kind(metadata: ModelMetadata) -> Kind:
    if tensor_names.LLMAPI.max_tokens in metadata.inputs:
        return "llmapi"
    if "finish_reason" in metadata.outputs and metadata.inputs.keys() >= set(_FOR_OUR_ENGINES):
        return "inflight"
    return "tensorrtllm"


def _honoured(metadata: ModelMetadata, config: ModelConfig) -> Tensors:
    """The inputs that it takes. Our BLS model has some for our engines alone, and refuses them before another's."""
    if config.flag("inflight_tensors") is False:
        refused: tuple[str, ...] = _FOR_OUR_ENGINES
    else:  # without being told, no more is sent than what the caller asks for
        refused = () if config.known or "stop" not in metadata.inputs else ("deadline_ms",)
    return {name: tensor for name, tensor in metadata.inputs.items() if name not in refused}


def _decoupled(config: ModelConfig, steps: list[ModelConfig]) -> bool | None:
    """An ensemble streams if any of its models does, which newer Tritons say in its own configuration."""
    known = [found.decoupled for found in (config, *steps)]
    if any(known):
        return True
    return None if None in known else False


def _stop_model(metadata: ModelMetadata, kind: Kind, config: ModelConfig, engine: ModelConfig | None) -> str | None:
    """An ensemble's requests keep their ids behind it; upstream's BLS model gives them others."""
    if "stop" in metadata.inputs:
        return metadata.name
    if engine is not None:
        return engine.name
    scripted = "use_draft_logits" in metadata.inputs
    return None if scripted or kind == "llmapi" or (config.known and not config.steps) else "tensorrt_llm"
