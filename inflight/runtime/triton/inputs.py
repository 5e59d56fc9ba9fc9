"""Reads a Triton request's inputs by name and by row: one row per prompt."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from inflight.common.request_error import RequestError
from inflight.common.suggestions import nearest
from inflight.runtime.triton.bounded_strings import MAX_STRINGS
from inflight.runtime.triton.request_metadata import METADATA_PARAMETERS, metadata_from

_ENSEMBLE_NAMES = {
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "len_penalty": "length_penalty",
    "request_output_len": "max_tokens",
    "streaming": "stream",
    "bad_words_list": "bad_words",
    "stop_words_list": "stop_words",
    "embedding_bias": "embedding_bias_words",
    "decoder_input_ids": "decoder_text_input",
    "prompt_table_extra_ids": "prompt_table_extra_id",
    "input_ids": "text_input",
}
"""The ensemble's names of `tensorrt_llm` inputs, where they differ."""

TEXT_INPUTS = (
    *("text_input", "messages", "chat_template_kwargs", "prompt_token_ids", "max_tokens", "stream", "end_id", "pad_id"),
    *("stop_words", "bad_words", "embedding_bias_words", "embedding_bias_weights", "exclude_input_in_output"),
    *("temperature", "top_k", "top_p", "min_p", "length_penalty", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "min_tokens", "seed", "beam_width", "num_return_sequences", "lora_task_id"),
    *("logit_bias_ids", "logit_bias_values", "allowed_token_ids", "guided_decoding_guide_type"),
    *("return_log_probs", "num_top_log_probs", "return_prompt_log_probs", "return_token_ids", "return_perf_metrics"),
    *("priority", "deadline_ms", "guided_decoding_guide"),
)
"""The inputs of `ensemble` that a request may use, as suggestions for misspelt ones."""


ADD_SPECIAL_TOKENS = "add_special_tokens"
_KNOWN_PARAMETERS = {
    ADD_SPECIAL_TOKENS,
    *("id", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout"),
    *METADATA_PARAMETERS,
}
"""Parameters of the KServe protocol, which Triton passes on with unknown ones, and inflight's own."""
_MAX_PARAMETER_CHARACTERS = 65_536
_REQUEST_TYPE = "request_type"
_WHOLE_REQUEST = "context_and_generation"


def parameters_json(request: Any) -> str:
    """Return the request's parameters as JSON. Raises RequestError for invalid text, and for too long ones."""
    try:
        text: str = request.parameters()
    except UnicodeDecodeError:
        raise RequestError("a parameter of the request is not valid UTF-8; send UTF-8", "invalid_text") from None
    if len(text) > _MAX_PARAMETER_CHARACTERS:
        raise RequestError(
            f"the parameters of the request have {len(text)} characters; send at most {_MAX_PARAMETER_CHARACTERS}",
            "invalid_parameter",
        )
    return text


def check_parameter_names(
    parameters: Mapping[str, Any], allowed: Collection[str] = (), inputs: Collection[str] = ()
) -> None:
    """Refuse parameters that are neither in `allowed` nor in the protocol; `inputs` are names to suggest.

    Triton's generate endpoint passes on JSON keys that match no input as parameters: without this check, a misspelt
    input would be ignored silently. An empty value counts as not sent, as in upstream's examples. Upstream's own
    parameter selects disaggregated serving, which is not supported. Request metadata is checked here too.
    """
    metadata_from(parameters)
    if not isinstance(parameters.get(ADD_SPECIAL_TOKENS, False), bool):
        raise RequestError(f"{ADD_SPECIAL_TOKENS} must be true or false", "invalid_parameter")
    for name, value in parameters.items():
        if name in _KNOWN_PARAMETERS or name in allowed or value in ("", 0, False, None):
            continue
        if name != _REQUEST_TYPE:
            near = nearest(name, inputs)
            next_step = f"did you mean {near!r}?" if near else "see the model's metadata for its inputs"
            raise RequestError(f"there is no input {name!r}; {next_step}", "invalid_request")
        if value != _WHOLE_REQUEST:
            raise RequestError(
                f"{_REQUEST_TYPE} is {str(value)[:40]!r}, and disaggregated serving is not supported; leave it out",
                "unsupported_input",
            )


class Inputs:
    """The arrays [prompts, ...] of a request. Reads raise RequestError for an invalid shape."""

    def __init__(self, request: Any) -> None:
        self._arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        for name, array in self._arrays.items():
            if array.dtype == object and array.size > MAX_STRINGS:
                raise RequestError(
                    f"{self.label(name)} holds {array.size} strings; send at most {MAX_STRINGS}", "invalid_parameter"
                )

    def __iter__(self) -> Any:
        return iter(self._arrays.items())

    @property
    def through_ensemble(self) -> bool:
        """Return whether the request came through preprocessing, which alone sets stream keys."""
        return "stream_key" in self._arrays

    def label(self, name: str) -> str:
        """Return the name under which a client sends an input, for messages."""
        return _ENSEMBLE_NAMES.get(name, name) if self.through_ensemble else name

    def array(self, name: str) -> Any:
        """Return the whole array, or None if the input was not sent."""
        return self._arrays.get(name)

    def required(self, name: str) -> Any:
        """Return the whole array. Raises RequestError (`invalid_request`) if it was not sent.

        Triton only counts a request's inputs: an optional one can replace a missing required one.
        """
        array = self._arrays.get(name)
        if array is None:
            raise RequestError(f"{self.label(name)} is missing; send it", "invalid_request")
        return array

    def row(self, name: str, row: int) -> Any:
        """Return one prompt's part of an input, or None."""
        array = self._arrays.get(name)
        return None if array is None else array[row]

    def scalar(self, name: str, row: int = 0, default: Any = None) -> Any:
        """Return the single value of an input for one prompt, as a Python value."""
        array = self._arrays.get(name)
        if array is None:
            return default
        values = array[row : row + 1]
        if values.size != 1:
            raise RequestError(f"{self.label(name)} holds {values.size} values; one is expected", "invalid_request")
        return values.item()

    def number(self, name: str, row: int, least: float, most: float, default: Any = None) -> Any:
        """Return the single value as `scalar` does. Raises RequestError (`invalid_parameter`) for one out of bounds."""
        value = self.scalar(name, row)
        if value is not None and not least <= value <= most:
            raise RequestError(f"{name} is {value}; it must be from {least} to {most}", "invalid_parameter")
        return default if value is None else value

    def common(self, name: str, default: Any = None) -> Any:
        """Return the single value of an input for the whole request. Raises RequestError if its prompts differ."""
        array = self._arrays.get(name)
        value = self.scalar(name, default=default)
        if array is not None and len(array) > 1 and (array != array[0]).any():
            raise RequestError(
                f"{self.label(name)} must be the same for all prompts of a request; send prompts with other values"
                " in separate requests",
                "invalid_request",
            )
        return value

    def texts(self, name: str, row: int = 0) -> tuple[str, ...]:
        """Return the non-empty strings of an input for one prompt; () if it was not sent."""
        return tuple(text for text in self.all_texts(name, row) if text)

    def all_texts(self, name: str, row: int = 0) -> tuple[str, ...]:
        """Return all strings of an input for one prompt, empty ones included; () if it was not sent."""
        array = self._arrays.get(name)
        if array is None:
            return ()
        try:
            return tuple(raw.decode("utf-8") for raw in array[row].ravel().tolist())
        except UnicodeDecodeError:
            raise RequestError(f"{self.label(name)} is not valid UTF-8; send UTF-8", "invalid_text") from None
