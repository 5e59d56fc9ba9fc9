"""Reads a request to `tensorrt_llm_bls` and builds the inputs of the models that it calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.runtime.engine.request_values import OLDER_NAMES
from inflight.runtime.messages import GenerationRequest, RequestError, SamplingConfig, check_stop_words
from inflight.runtime.triton.inputs import Inputs
from inflight.runtime.triton.perf_metrics import PERF_TENSORS
from inflight.runtime.triton.request import check_answer_count
from inflight.runtime.triton.word_tensors import unpack

PREPROCESSING_INPUTS = {
    "text_input": "QUERY",
    "messages": "MESSAGES",
    "chat_template_kwargs": "CHAT_TEMPLATE_KWARGS",
    "prompt_token_ids": "PROMPT_TOKEN_IDS",
    "decoder_text_input": "DECODER_QUERY",
    "image_bytes_input": "IMAGE_BYTES",
    "image_url_input": "IMAGE_URL",
    "video_bytes_input": "VIDEO_BYTES",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
    "prompt_table_extra_id": "PROMPT_TABLE_EXTRA_ID",
}
"""Preprocessing's names of its inputs."""

_PREPARED_INPUTS = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "BAD_WORDS_IDS": "bad_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
    "OUT_PROMPT_TABLE_EXTRA_IDS": "prompt_table_extra_ids",
}
"""The engine's names of preprocessing's outputs."""
_STOP_WORDS = "STOP_WORDS_IDS"
_ENCODER_INPUTS = {"DECODER_INPUT_ID": "decoder_input_ids", "REQUEST_DECODER_INPUT_LEN": "decoder_input_lengths"}
_STREAM_KEY = "OUT_STREAM_KEY"

_RENAMED_INPUTS = {"top_k": "runtime_top_k", "top_p": "runtime_top_p", "length_penalty": "len_penalty"}
_SAME_INPUTS = (
    *("temperature", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens", "seed"),
    *("beam_width", "num_return_sequences", "return_log_probs", "return_perf_metrics", "prompt_vocab_size"),
    *("return_context_logits", "return_generation_logits", "prompt_embedding_table"),
    *("lora_task_id", "lora_weights", "lora_config", "guided_decoding_guide_type", "guided_decoding_guide"),
)
_OUR_INPUTS = (*("priority", "deadline_ms", "min_p", "logit_bias_ids", "logit_bias_values", "allowed_token_ids"),)
"""Inputs that only inflight's engines support."""

TEXT_INPUTS = (
    *PREPROCESSING_INPUTS, *_RENAMED_INPUTS, *_SAME_INPUTS, *_OUR_INPUTS,
    *("stream", "exclude_input_in_output", "return_token_ids"),
)  # fmt: skip
"""The input names of `ensemble` and `tensorrt_llm_bls`."""

_LOGITS = ("context_logits", "generation_logits")
EXTRAS = (*PERF_TENSORS, *_LOGITS)
"""Outputs of the engine's model that are passed on unchanged."""


@dataclass(frozen=True)
class TextRequest:
    """A request's inputs and the values that this model reads; the rest is for the other models."""

    inputs: Inputs
    prompts: int
    streaming: bool
    exclude_input: bool
    sequences: int
    """Answers to each prompt."""
    beams: int
    log_probs: bool
    perf_metrics: bool
    token_ids: bool
    num_draft_tokens: int

    def max_tokens(self, row: int) -> int:
        return int(self.inputs.scalar("max_tokens", row))

    def min_tokens(self, row: int) -> int:
        return int(_scalar(self.inputs, "min_tokens", row, 0))

    def stop_word_request(self, prepared: Mapping[str, Any], row: int) -> GenerationRequest | None:
        """Return what the stop word search of a prompt needs; None if the client sent no stop words.

        Preprocessing may have added end tokens to the stop words' ids, which an engine handles by itself.
        """
        inputs = self.inputs
        if not inputs.texts("stop_words", row):
            return None
        found = GenerationRequest(
            (),
            0,
            sampling=SamplingConfig(min_tokens=self.min_tokens(row)),
            stop_ids=unpack(prepared[_STOP_WORDS][row], "stop_words"),
            stop_texts=inputs.texts("stop_words", row),
        )
        check_stop_words(found)
        return found

    @property
    def has_decoder_input(self) -> bool:
        """Return whether it has a text for the decoder, even an empty one."""
        return self.inputs.array("decoder_text_input") is not None

    def preprocessing_inputs(self) -> list[Any]:
        arrays = {target: self.inputs.array(name) for name, target in PREPROCESSING_INPUTS.items()}
        return [pb_utils.Tensor(target, array) for target, array in arrays.items() if array is not None]

    def preprocessing_outputs(self) -> list[str]:
        """Return the outputs to request from preprocessing: those that the request's other models need."""
        return [*_PREPARED_INPUTS, _STOP_WORDS, _STREAM_KEY, *(_ENCODER_INPUTS if self.has_decoder_input else ())]

    def engine_inputs(
        self,
        prepared: Mapping[str, Any],
        streaming: bool,
        inflight_tensors: bool,
        changed: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Build the engine's inputs; `inflight_tensors` says that it is inflight's, which has additional ones.

        The engine never returns the prompt: this model adds it to an answer. inflight's engines search the whole answer
        for stop words; others get the ids of stop words, and only streamed text is searched here. `changed` values
        replace others.
        """
        given: dict[str, Any] = {target: prepared[name] for name, target in _PREPARED_INPUTS.items()}
        if self.has_decoder_input:
            given |= {target: prepared[name] for name, target in _ENCODER_INPUTS.items()}
        for name in _SAME_INPUTS:
            array = self.inputs.array(name)
            given[name] = self.inputs.array(OLDER_NAMES[name]) if array is None and name in OLDER_NAMES else array
        given |= {target: self.inputs.array(name) for name, target in _RENAMED_INPUTS.items()}
        given["streaming"] = np.full(self.prompts, streaming)
        given["exclude_input_in_output"] = np.full(self.prompts, True)
        if inflight_tensors:
            given["stream_key"] = prepared[_STREAM_KEY]
            if not changed:
                given["stop_words"] = self.inputs.array("stop_words")
        if not changed and (inflight_tensors or not streaming or self.inputs.array("stop_words") is None):
            given["stop_words_list"] = prepared[_STOP_WORDS]
        for name in _OUR_INPUTS:
            given[name] = self.inputs.array(name)
            if given[name] is not None and not inflight_tensors:
                raise RequestError(
                    f"{name} is not known to this deployment's engine; leave it out", "unsupported_input"
                )
        given |= changed or {}
        sent = {name: array for name, array in given.items() if array is not None and array.size}
        return [pb_utils.Tensor(name, _rows(array)) for name, array in sent.items()]

    def engine_outputs(self, inflight_tensors: bool) -> list[str]:
        """Return the outputs to request from the engine's model; each one costs time, so only those needed."""
        names = ["output_ids", "sequence_length"]
        if self.prompts > 1:
            names.append("batch_index")
        if self.sequences > 1:
            names.append("sequence_index")
        if self.log_probs:
            names += ["output_log_probs", "cum_log_probs"]
        if self.perf_metrics:
            names += PERF_TENSORS
        names += [name for name in _LOGITS if self.inputs.common(f"return_{name}", default=False)]
        if inflight_tensors:
            names += ["finish_reason", *(["chunk_header"] if self.inputs.array("stop_words") is not None else [])]
        return names


def text_request(inputs: Inputs, exclude_input: bool) -> TextRequest:
    """Read a request; `exclude_input` is the deployment's default. Raises RequestError for an invalid one."""
    texts, max_tokens = inputs.array("text_input"), inputs.array("max_tokens")
    if texts is None:
        texts = inputs.array("messages")
    if texts is None or not texts.size:
        raise RequestError("text_input is missing; send the prompt's text, or messages", "invalid_request")
    if max_tokens is None:
        raise RequestError("max_tokens is missing; send how many tokens the answer may have", "invalid_request")
    if max_tokens.size != len(texts) or max_tokens.min() < 1:
        raise RequestError("max_tokens must be a single value > 0; send one for each prompt", "invalid_parameter")
    if _given(inputs, "image_input"):
        raise RequestError("image_input is not supported: the model reads text only; leave it out", "unsupported_input")
    if np.any(inputs.array("use_draft_logits")):
        raise RequestError(
            "use_draft_logits is not supported: drafts are compared by their tokens; leave it out", "unsupported_input"
        )
    drafts = inputs.common("num_draft_tokens", 0)
    if drafts < 0:
        raise RequestError(f"num_draft_tokens is {drafts}; it must be 0 or more", "invalid_parameter")
    sequences = inputs.common("num_return_sequences", 1)
    check_answer_count(sequences, len(texts))
    return TextRequest(
        inputs=inputs,
        prompts=len(texts),
        streaming=inputs.common("stream", False),
        exclude_input=inputs.common("exclude_input_in_output", exclude_input),
        sequences=sequences,
        beams=inputs.common("beam_width", 1),
        log_probs=inputs.common("return_log_probs", False),
        perf_metrics=inputs.common("return_perf_metrics", False),
        token_ids=inputs.common("return_token_ids", False),
        num_draft_tokens=drafts,
    )


def _scalar(inputs: Inputs, name: str, row: int, default: Any) -> Any:
    value = inputs.scalar(name, row)
    if value is None and name in OLDER_NAMES:
        value = inputs.scalar(OLDER_NAMES[name], row)
    return default if value is None else value


def _given(inputs: Inputs, name: str) -> bool:
    values = inputs.array(name)
    return values is not None and bool(values.size)


def _rows(array: Any) -> Any:
    """Return an array with one row per prompt: Triton squeezes inputs whose shape is [] in a model."""
    return array.reshape(-1, 1) if array.ndim == 1 else array
