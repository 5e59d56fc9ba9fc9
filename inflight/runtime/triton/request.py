"""Converts upstream's input tensors of `tensorrt_llm` to GenerationRequests and response options."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inflight.common.request_error import RequestError
from inflight.runtime.engine.request_values import (
    MAX_SEQUENCES,
    OLDER_NAMES,
    SAMPLING_INPUTS,
    checked_count,
    deadline_from,
    end_ids_from,
    guide_from,
    sampling_from,
)
from inflight.runtime.messages import EngineLimits, GenerationRequest, RequestMetadata
from inflight.runtime.triton.adapters import Adapters
from inflight.runtime.triton.inputs import Inputs, check_parameter_names
from inflight.runtime.triton.unsupported_inputs import check_supported
from inflight.runtime.triton.word_tensors import check_words, unpack

_INPUTS_OF_FIELDS = {
    "prompt_ids": "input_ids",
    "max_tokens": "request_output_len",
    "end_ids": "end_id",
    "allowed_ids": "allowed_token_ids",
}
_STREAMING = "Streaming"
MAX_BIASES = 1024
"""Limit of `logit_bias_ids`, as of tokens in OpenAI's `logit_bias` at other servers; `embedding_bias` takes all."""


@dataclass(frozen=True)
class ResponseOptions:
    """How the answers to a request's prompts are sent."""

    streaming: bool = False
    exclude_input: bool = False
    sequences: int = 1
    """Answers to each prompt."""
    log_probs: bool = False
    top_log_probs: int = 0
    perf_metrics: bool = False
    token_ids: bool = False
    """Whether to send the answer's own tokens separately from the prompt's."""


def check_parameters(request_parameters: Mapping[str, Any], inputs: Inputs) -> None:
    """Raise RequestError for request parameters that would change nothing.

    Upstream's client repeats the `streaming` input there, and sends a request to stop only there.
    """
    streams = inputs.common("streaming", False) or inputs.common("stop", False)
    check_parameter_names(request_parameters, allowed=(_STREAMING,) if streams else ())


def response_options(inputs: Inputs, exclude_input: bool) -> ResponseOptions:
    """Read the options; `exclude_input` is the model's default. Raises RequestError if options exclude each other."""
    sequences = inputs.common("num_return_sequences", default=1)
    beams = inputs.common("beam_width", default=1)
    rows = inputs.array("input_ids")
    check_answer_count(sequences, 1 if rows is None else len(rows))
    if sequences > 1 and beams > 1:
        raise RequestError(
            "num_return_sequences and beam_width can't both be above 1; a beam search returns all its beams",
            "invalid_parameter",
        )
    return ResponseOptions(
        streaming=inputs.common("streaming", default=False),
        exclude_input=inputs.common("exclude_input_in_output", default=exclude_input),
        sequences=sequences,
        log_probs=_log_probs(inputs),
        top_log_probs=inputs.common("num_top_log_probs", default=0),
        perf_metrics=inputs.common("return_perf_metrics", default=False),
        token_ids=inputs.common("return_token_ids", default=False),
    )


def check_answer_count(sequences: int, prompts: int) -> None:
    """Raise RequestError (`invalid_parameter`) for too many answers in total."""
    checked_count("num_return_sequences", sequences, MAX_SEQUENCES)
    if sequences * prompts > MAX_SEQUENCES:
        raise RequestError(
            f"num_return_sequences is {sequences} for {prompts} prompts, {sequences * prompts} answers together; ask"
            f" for at most {MAX_SEQUENCES} in one request",
            "invalid_parameter",
        )


def generation_requests(
    inputs: Inputs,
    end_ids: tuple[int, ...],
    adapters: Adapters,
    engine: str,
    limits: EngineLimits,
    origin: RequestMetadata | None = None,
) -> list[GenerationRequest]:
    """Return one request per prompt; `end_ids` are the model's own, used unless the request has an end_id.

    `adapters` are those that the deployment has. Raises RequestError for invalid values, and for inputs that
    this `engine` doesn't support. Inputs longer than the engine's `limits` are refused by their length, before they
    become lists.
    """
    for name, values in inputs:
        check_supported(engine, name, values, inputs.label(name))
    rows = inputs.array("input_ids")
    if rows is None:
        raise RequestError("input_ids is missing; send the prompt's token ids", "invalid_request")
    for name in ("input_lengths", "request_output_len"):
        inputs.required(name)
    return [_generation_request(inputs, row, end_ids, adapters, limits, origin) for row in range(len(rows))]


def _generation_request(
    inputs: Inputs,
    row: int,
    end_ids: tuple[int, ...],
    adapters: Adapters,
    limits: EngineLimits,
    origin: RequestMetadata | None,
) -> GenerationRequest:
    values = {name: inputs.scalar(name, row) for name in SAMPLING_INPUTS}
    for name, older in OLDER_NAMES.items():
        if values[name] is None:
            values[name] = inputs.scalar(older, row)
    stop_words = inputs.row("stop_words_list", row)
    return GenerationRequest(
        prompt_ids=_prompt_ids(inputs, row, limits),
        max_tokens=inputs.scalar("request_output_len", row),
        end_ids=end_ids_from(inputs.scalar("end_id", row), end_ids),
        sampling=sampling_from(values, inputs.label),
        stop_ids=() if stop_words is None else unpack(stop_words, inputs.label("stop_words_list")),
        stop_texts=_stop_texts(inputs, row),
        bad_ids=_bad_ids(inputs, row),
        logit_bias=(*_bias(inputs, row, limits), *_bias_by_id(inputs, row)),
        allowed_ids=tuple(_ids(inputs, "allowed_token_ids", row, limits.vocabulary_size)),
        log_probs=_log_probs(inputs),
        top_log_probs=inputs.common("num_top_log_probs", default=0),
        prompt_log_probs=inputs.common("return_prompt_log_probs", default=False),
        guide=guide_from(_text(inputs, "guided_decoding_guide_type", row), _text(inputs, "guided_decoding_guide", row)),
        adapter=adapters.check(inputs.scalar("lora_task_id", row, 0)),
        priority=inputs.scalar("priority", row, 0),
        deadline_ns=deadline_from(inputs.scalar("deadline_ms", row), time.monotonic_ns()),
        metadata=origin,
    )


def with_content_seed(request: GenerationRequest) -> GenerationRequest:
    """Return a request with a seed: its own, or one that follows from its prompt and sampling parameters."""
    sampling = request.sampling
    if sampling.seed is not None:
        return request
    content = repr((request.prompt_ids, sampling)).encode()
    seed = int.from_bytes(hashlib.sha256(content).digest()[:8])
    return replace(request, sampling=replace(sampling, seed=seed))


def check_limits(inputs: Inputs, prompts: list[GenerationRequest], limits: EngineLimits) -> None:
    """Raise RequestError if the engine can't run a prompt, with the sender's names of inputs."""
    names = {field: inputs.label(name) for field, name in _INPUTS_OF_FIELDS.items()}
    for prompt in prompts:
        limits.check(prompt, names)


def _prompt_ids(inputs: Inputs, row: int, limits: EngineLimits) -> tuple[int, ...]:
    ids = inputs.row("input_ids", row).ravel()
    length = inputs.scalar("input_lengths", row)
    if not 0 <= length <= ids.size:
        raise RequestError(f"input_lengths is {length}, and input_ids holds {ids.size} token ids", "invalid_request")
    max_tokens = max(inputs.scalar("request_output_len", row), 0)
    limits.check_length(length, max_tokens, name=inputs.label("request_output_len"))
    return tuple(ids[:length].tolist())


def _log_probs(inputs: Inputs) -> bool:
    """Return whether log probabilities are requested, with the newer input name or else the older one."""
    requested: bool = inputs.common("return_log_probs", inputs.common("output_log_probs", False))
    return requested or inputs.common("num_top_log_probs", default=0) > 0


def _stop_texts(inputs: Inputs, row: int) -> tuple[str, ...]:
    texts = inputs.texts("stop_words", row)
    check_words(texts, "stop_words")
    return texts


def _bad_ids(inputs: Inputs, row: int) -> tuple[tuple[int, ...], ...]:
    """Return the bad words; upstream's clients send ends of 0 and -1 for no words."""
    words = inputs.row("bad_words_list", row)
    if words is None or not np.any(words[1:] > 0):
        return ()
    return unpack(words, inputs.label("bad_words_list"))


def _bias(inputs: Inputs, row: int, limits: EngineLimits) -> tuple[tuple[int, float], ...]:
    """Return the token ids with a logit bias, from one number per token of the vocabulary."""
    values = inputs.row("embedding_bias", row)
    if values is None:
        return ()
    values = values.ravel()
    places = np.flatnonzero(values)
    if places.size and places[-1] >= limits.vocabulary_size:
        raise RequestError(
            f"embedding_bias: token id {places[-1]} is outside the vocabulary of {limits.vocabulary_size} tokens; send"
            " one number for each token",
            "invalid_token_ids",
        )
    return tuple(zip(places.tolist(), values[places].tolist(), strict=True))


def _bias_by_id(inputs: Inputs, row: int) -> tuple[tuple[int, float], ...]:
    ids, values = _ids(inputs, "logit_bias_ids", row, MAX_BIASES), inputs.row("logit_bias_values", row)
    if len(ids) > (count := 0 if values is None else values.size):
        raise RequestError(
            f"logit_bias_ids holds {len(ids)} token ids and logit_bias_values {count} numbers; send one for each",
            "invalid_parameter",
        )
    return tuple(zip(ids, values.ravel().tolist(), strict=False)) if ids else ()


def _ids(inputs: Inputs, name: str, row: int, most: int) -> list[int]:
    """Return the ids before those that fill a row up."""
    values = inputs.row(name, row)
    if values is None:
        return []
    if values.size > most:
        raise RequestError(f"{name} holds {values.size} token ids; send at most {most}", "invalid_parameter")
    ids: list[int] = values.ravel().tolist()
    while ids and ids[-1] == -1:
        ids.pop()
    return ids


def _text(inputs: Inputs, name: str, row: int) -> str | None:
    """Return an optional string; an empty one counts as not sent, since upstream's examples send empty inputs."""
    texts = inputs.texts(name, row)
    if len(texts) > 1:
        raise RequestError(f"{name} holds {len(texts)} strings; one is expected", "invalid_request")
    return texts[0] if texts else None
