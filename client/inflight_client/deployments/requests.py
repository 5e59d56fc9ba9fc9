"""Builds requests for a deployment and the decoders of their responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from inflight_client.call import Call
from inflight_client.deployments.answer import AnswerDecoder
from inflight_client.deployments.deployment import Deployment
from inflight_client.deployments.request_inputs import RequestInputs
from inflight_client.deployments.tensor_names import TIMING_OUTPUTS
from inflight_client.transport import InferRequest, Tensor
from inflight_client.versions import client_version

if TYPE_CHECKING:
    from inflight_client.chat_template import ChatTemplate


def build_request(
    deployment: Deployment, call: Call, seconds_left: float | None, template: ChatTemplate | None
) -> InferRequest:
    """Return the call's request. Raises Unsupported for options that the deployment lacks, and no_chat_template."""
    inputs = RequestInputs(deployment)
    inputs.add_call(call, seconds_left, template)
    return InferRequest(
        deployment.model,
        call.request_id,
        inputs.tensors,
        _requested_outputs(deployment, call, inputs.tensors),
        _parameters(deployment, call),
        {"traceparent": call.traceparent} if call.traceparent else {},
    )


def answer_decoder(deployment: Deployment, call: Call) -> AnswerDecoder:
    """Return the decoder for the responses to the call's request."""
    if deployment.is_inflight or deployment.kind == "openai":
        return AnswerDecoder(deployment, call)
    from inflight_client.deployments.upstream_answer import UpstreamAnswerDecoder

    return UpstreamAnswerDecoder(deployment, call)


def build_stop_request(deployment: Deployment, request_id: str) -> InferRequest:
    """Return a request that stops those with the id. Raises Unsupported if ids do not reach the engine."""
    if deployment.stop_model is None:
        raise deployment.unsupported(
            "cancel", "it replaces request ids before its engine sees them; close the stream instead"
        )
    if deployment.stop_model == deployment.model and not deployment.speaks_tokens:
        inputs = RequestInputs(deployment)
        inputs.add("text_input", "")
        if deployment.kind != "llmapi":
            inputs.add("max_tokens", 1)
        inputs.add("stop", True)
        return InferRequest(deployment.model, request_id, inputs.tensors)
    # Required inputs that the engine's model ignores in a stop request; it batches if this model does.
    shape = (1,) * len(deployment.inputs["input_ids" if deployment.speaks_tokens else "text_input"][1])
    needed = {name: Tensor("INT32", shape, (1,)) for name in ("input_lengths", "request_output_len")}
    stop = {"input_ids": Tensor("INT32", shape, (0,)), **needed, "stop": Tensor("BOOL", shape, (True,))}
    return InferRequest(deployment.stop_model, request_id, stop)


def _requested_outputs(deployment: Deployment, call: Call, inputs: Mapping[str, Tensor]) -> tuple[str, ...]:
    text = ("output_ids", "dropped_characters") if deployment.speaks_tokens else ("text_output",)
    if deployment.speaks_tokens and not deployment.is_inflight:
        text = (*text, "sequence_length")
    wanted = [*text, "finish_reason", "num_input_tokens", "num_output_tokens"]
    if deployment.is_inflight:
        wanted += ["num_responses", "num_cached_tokens"]
    if "return_stop_reason" in inputs:
        wanted.append("stop_reason")
    if "return_token_ids" in inputs:
        wanted.append("token_ids")
    if call.wants_log_probs:
        wanted += ["output_log_probs", "cum_log_probs"]
    if call.top_log_probs:
        wanted += ["top_token_ids", "top_log_probs"]
    if call.return_prompt_log_probs:
        wanted += ["prompt_log_probs", *(["prompt_top_token_ids", "prompt_top_log_probs"] * bool(call.top_log_probs))]
    if call.return_perf_metrics:
        wanted += TIMING_OUTPUTS
    return tuple(name for name in wanted if name in deployment.outputs)


def _parameters(deployment: Deployment, call: Call) -> dict[str, str | int | bool]:
    # Parameters were introduced with num_responses; older versions of inflight reject them.
    if not (deployment.is_inflight and "num_responses" in deployment.outputs):
        if call.tenant:
            raise deployment.unsupported("tenant", "it does not record tenants; leave it out")
        if call.add_special_tokens is not None:
            raise deployment.unsupported(
                "add_special_tokens", "its preprocessing has one setting for all; leave it out"
            )
        return {}
    given = {"tenant": call.tenant, "traceparent": call.traceparent, "inflight_client": client_version()}
    found: dict[str, str | int | bool] = {name: value for name, value in given.items() if value}
    if call.add_special_tokens is not None:
        found["add_special_tokens"] = call.add_special_tokens
    return found
