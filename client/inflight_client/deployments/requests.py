"""Builds requests for a deployment and the decoders of their responses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from inflight_client.call import Call, TokenIds, TokenText
from inflight_client.deadline import deadline_ms
from inflight_client.deployments.answer import AnswerDecoder
from inflight_client.deployments.deployment import Deployment
from inflight_client.deployments.tensor_names import BIAS_VALUES, GUIDE_TEXT, TIMING_OUTPUTS
from inflight_client.errors import InflightError
from inflight_client.sampling import Sampling
from inflight_client.transport import InferRequest, Tensor
from inflight_client.validation import check_utf8, invalid_value
from inflight_client.versions import client_version

if TYPE_CHECKING:
    from inflight_client.chat_template import ChatTemplate

PREPROCESSING = "preprocessing"
"""The model of a deployment that tokenizes texts."""
_SAMPLING = tuple(field.name for field in fields(Sampling) if field.name != "guide")


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


def build_tokenize_request(deployment: Deployment, text: str) -> InferRequest:
    """Return a request for the token ids of a text. Raises Unsupported, and InflightError for what is no text."""
    if deployment.kind not in ("inflight", "tensorrtllm"):
        raise deployment.unsupported("tokenize", f"it has no model {PREPROCESSING}; send token ids")
    if not isinstance(text, str):
        raise invalid_value("text", text, "a text")
    check_utf8("text", text)
    inputs = {"QUERY": Tensor("BYTES", (1, 1), (text,)), "REQUEST_OUTPUT_LEN": Tensor("INT32", (1, 1), (0,))}
    return InferRequest(PREPROCESSING, "", inputs, ("INPUT_ID",))


def _requested_outputs(deployment: Deployment, call: Call, inputs: Mapping[str, Tensor]) -> tuple[str, ...]:
    text = ("output_ids", "dropped_characters") if deployment.speaks_tokens else ("text_output",)
    if deployment.speaks_tokens and not deployment.is_inflight:
        text = (*text, "sequence_length")
    outputs = [*text, "finish_reason", "num_input_tokens", "num_output_tokens"]
    if deployment.is_inflight:
        outputs += ["num_responses", "num_cached_tokens"]
    if "return_stop_reason" in inputs:
        outputs.append("stop_reason")
    if "return_token_ids" in inputs:
        outputs.append("token_ids")
    if call.wants_log_probs:
        outputs += ["output_log_probs", "cum_log_probs"]
    if call.top_log_probs:
        outputs += ["top_token_ids", "top_log_probs"]
    if call.return_prompt_log_probs:
        outputs += ["prompt_log_probs", *(["prompt_top_token_ids", "prompt_top_log_probs"] * bool(call.top_log_probs))]
    if call.return_perf_metrics:
        outputs += TIMING_OUTPUTS
    return tuple(name for name in outputs if name in deployment.outputs)


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
    values = {"tenant": call.tenant, "traceparent": call.traceparent, "inflight_client": client_version()}
    parameters: dict[str, str | int | bool] = {name: value for name, value in values.items() if value}
    if call.add_special_tokens is not None:
        parameters["add_special_tokens"] = call.add_special_tokens
    return parameters


class RequestInputs:
    """Collects the tensors of a call. Raises Unsupported for options that the deployment lacks."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._names = deployment.tensor_names
        self.tensors: dict[str, Tensor] = {}

    def add_call(self, call: Call, seconds_left: float | None, template: ChatTemplate | None) -> None:
        """Add all inputs of a call."""
        names = self._names
        self._add_prompt(call, template)
        self.add(names.max_tokens, call.max_tokens)
        self._add_stream(call)
        values = sampling_values(call.sampling)
        if self._deployment.kind == "llmapi":
            _adapt_to_llmapi(values)
        if self._deployment.speaks_tokens and not self._deployment.is_inflight:
            self._add_end_tokens(values, call.token_text)
        self._add_sampling(values, call.token_text)
        self._add_guide(call.sampling)
        asks_for_ids = call.wants_token_ids or (call.wants_token_ids is None and self._has("return_token_ids"))
        options = {
            "return_log_probs": call.wants_log_probs,
            "top_log_probs": call.top_log_probs,
            "return_prompt_log_probs": call.return_prompt_log_probs,
            "return_token_ids": asks_for_ids and not self._deployment.speaks_tokens,  # whose answers are token ids
            "return_perf_metrics": call.return_perf_metrics,
            "priority": call.priority,
        }
        for option, value in options.items():
            if value:
                self._add_option(option, value)
        if seconds_left is not None and self._has("deadline_ms"):
            self.add("deadline_ms", deadline_ms(seconds_left))
        self._add_output_flags(call)

    def add(self, name: str, *values: Any) -> None:
        """Add a tensor with the type and rank in the deployment's metadata."""
        datatype, shape = self._deployment.inputs[name]
        if datatype != "BYTES" and datatype != "BOOL":
            convert = float if datatype.startswith(("FP", "BF")) else int
            values = tuple(map(convert, values))
        self.tensors[name] = Tensor(datatype, (1,) * (len(shape) - 1) + (len(values),), values)

    def _add_prompt(self, call: Call, template: ChatTemplate | None) -> None:
        if self._deployment.speaks_tokens:
            if not isinstance(call.prompt, TokenIds):
                raise self._deployment.unsupported("text", "it takes token ids; send TokenIds, or name another model")
            self.add("input_ids", *call.prompt.ids)
            self.add("input_lengths", len(call.prompt.ids))
            return
        if isinstance(call.prompt, str):
            self.add("text_input", call.prompt)
            return
        if isinstance(call.prompt, TokenIds):
            if not self._has("prompt_token_ids"):
                raise self._deployment.unsupported("prompts of token ids", "it takes text; send the text")
            self.add("text_input", "")
            self.add("prompt_token_ids", *call.prompt.ids)
            return
        if template is None and self._has("messages"):
            self.add("text_input", "")
            self.add("messages", call.messages_json)
            if call.chat_template_kwargs:
                self.add("chat_template_kwargs", call.template_kwargs_json)
            return
        if template is None:
            raise InflightError(
                f"{self._deployment.display_name} renders no messages, and the client has no chat template; give the"
                " client chat_template=DIRECTORY, a checkpoint's or tokenizer's, or send text",
                "no_chat_template",
            )
        self.add("text_input", rendered_prompt(call, template, self._deployment.adds_special_tokens))

    def _add_stream(self, call: Call) -> None:
        names = self._names
        if call.stream:
            if self._deployment.decoupled is False:
                raise self._deployment.unsupported(
                    "stream",
                    "its model is not decoupled and sends one response per request; call generate instead, or deploy it"
                    " decoupled",
                )
            if self._deployment.accumulates is None:
                raise self._deployment.unsupported(
                    "stream",
                    "the client may not read its configuration, which says whether text accumulates; give the client"
                    " headers that allow it, or call generate",
                )
            self._require(names.stream, "stream")
        if self._has(names.stream):
            self.add(names.stream, self._deployment.streams(call))
        if self._has(names.exclude_input):
            self.add(names.exclude_input, True)
        elif not self._deployment.streams(call):
            raise self._deployment.unsupported("generate", "its answers repeat the prompt; use stream instead")

    def _add_sampling(self, values: Mapping[str, Any], token_text: TokenText | None) -> None:
        for option, value in values.items():
            if option in ("stop", "bad_words") and self._deployment.speaks_tokens:
                self._add_words(option, value, token_text)
                continue
            several = option in ("stop", "bad_words", "allowed_token_ids", "logit_bias")
            self._add_option(option, *(value if several else (value,)))
            if option == "logit_bias":
                self.add(BIAS_VALUES, *value.values())

    def _add_end_tokens(self, values: dict[str, Any], token_text: TokenText | None) -> None:
        """Name the end tokens to an engine that takes one and knows none; the others are stop words."""
        ends = [] if token_text is None or values.get("end_id") is not None else list(token_text.end_ids)
        words = token_text.encode_words(values.pop("stop", ())) if token_text is not None else []
        if ends:
            values["end_id"] = ends[0]
        if words or ends[1:]:
            self._add_word_ids("stop_words_list", [*words, *([end] for end in ends[1:])])

    def _add_words(self, option: str, words: Sequence[str], token_text: TokenText | None) -> None:
        """Add words as text, or as token ids with the end of each word."""
        name = next((name for name in self._names.options[option] if self._has(name)), None)
        if name is None or (name.endswith("_list") and token_text is None):
            raise self._deployment.unsupported(option, "it takes token ids; give the call a token_text")
        if not name.endswith("_list"):
            self.add(name, *words)
            return
        assert token_text is not None
        self._add_word_ids(name, token_text.encode_words(words))

    def _add_word_ids(self, name: str, ids: Sequence[Sequence[int]]) -> None:
        """Add words as their token ids and the end of each word."""
        flat = [token_id for word in ids for token_id in word]
        ends = list(accumulate(map(len, ids)))
        longest = max(len(flat), len(ends))
        rows = [*flat, *[0] * (longest - len(flat)), *ends, *[-1] * (longest - len(ends))]
        self.tensors[name] = Tensor("INT32", (1, 2, longest), tuple(rows))

    def _add_guide(self, sampling: Sampling) -> None:
        if sampling.guide is None:
            return
        self._add_option("guide", sampling.guide.type)
        if sampling.guide.text:
            self._require(GUIDE_TEXT, "guide")
            self.add(GUIDE_TEXT, sampling.guide.text)

    def _add_output_flags(self, call: Call) -> None:
        """Request the optional outputs of upstream's models that need a flag."""
        if self._deployment.is_inflight:
            return
        asked = ["return_num_input_tokens", "return_num_output_tokens", "return_finish_reason"]
        asked += ["return_stop_reason"] * bool(call.sampling.stop)
        for name in asked:
            if self._has(name):
                self.add(name, True)

    def _add_option(self, option: str, *values: Any) -> None:
        for name in self._names.options.get(option, ()):
            if self._has(name):
                self.add(name, *values)
                return
        raise self._deployment.unsupported(option, "it has no such input; leave it out")

    def _require(self, name: str, option: str) -> None:
        if not self._has(name):
            raise self._deployment.unsupported(option, f"it has no input {name}; leave it out")

    def _has(self, name: str) -> bool:
        return name in self._deployment.inputs


def rendered_prompt(call: Call, template: ChatTemplate, adds_special_tokens: bool | None) -> str:
    """Return the text of the call's messages for a model that renders none, see `ChatTemplate.without_bos`."""
    text = template.render(json.loads(call.messages_json), **json.loads(call.template_kwargs_json))
    return template.without_bos(text, adds_special_tokens)


def sampling_values(sampling: Sampling) -> dict[str, Any]:
    """Return the given values but the guide.

    TensorRT-LLM ignores a temperature without top_k and top_p, so top_p is added.
    """
    values = {name: value for name in _SAMPLING if (value := getattr(sampling, name)) not in (None, (), {})}
    if values.get("temperature") and not {"top_k", "top_p"} & values.keys():
        values["top_p"] = 1.0
    return values


def _adapt_to_llmapi(values: dict[str, Any]) -> None:
    """Adapt the values: in the LLM API top_p 0 is greedy, and a temperature alone samples."""
    temperature, top_k, top_p = (values.get(name) for name in ("temperature", "top_k", "top_p"))
    if {"temperature", "top_k", "top_p"} & values.keys() and (temperature == 0 or top_k == 1 or not (top_k or top_p)):
        for name in ("temperature", "top_p"):
            values.pop(name, None)
        values["top_k"] = 1
    elif not top_p:
        values.pop("top_p", None)
