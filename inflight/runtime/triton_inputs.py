"""A Triton request's inputs, read by name and by row: one row a prompt."""

from __future__ import annotations

from typing import Any

from inflight.runtime.messages import RequestError

_ENSEMBLE_NAMES = {
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "len_penalty": "length_penalty",
    "request_output_len": "max_tokens",
    "bad_words_list": "bad_words",
    "stop_words_list": "stop_words",
    "embedding_bias": "embedding_bias_words",
    "decoder_input_ids": "decoder_text_input",
    "prompt_table_extra_ids": "prompt_table_extra_id",
    "input_ids": "text_input",
}
"""How the ensemble calls an input of `tensorrt_llm`, where it calls it otherwise."""


def parameters_json(request: Any) -> str:
    """What came beside the tensors, as JSON; RequestError (`invalid_text`) for names or values that are no text."""
    try:
        found: str = request.parameters()
    except UnicodeDecodeError:
        raise RequestError("a parameter of the request is not valid UTF-8; send UTF-8", "invalid_text") from None
    return found


class Inputs:
    """The arrays [prompts, ...] of a request. Everything read raises RequestError for a shape that doesn't fit."""

    def __init__(self, request: Any) -> None:
        self._arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}

    def __iter__(self) -> Any:
        return iter(self._arrays.items())

    @property
    def through_ensemble(self) -> bool:
        """Whether preprocessing stands before this request: it alone knows of stream keys."""
        return "stream_key" in self._arrays

    def label(self, name: str) -> str:
        """The name of an input as its sender knows it, for messages."""
        return _ENSEMBLE_NAMES.get(name, name) if self.through_ensemble else name

    def array(self, name: str) -> Any:
        """The whole array, or None where the input was not sent."""
        return self._arrays.get(name)

    def required(self, name: str) -> Any:
        """The whole array; RequestError (`invalid_request`) where it was not sent.

        Triton only counts a request's inputs: any optional one stands in for one that is missing.
        """
        array = self._arrays.get(name)
        if array is None:
            raise RequestError(f"{self.label(name)} is missing; send it", "invalid_request")
        return array

    def row(self, name: str, row: int) -> Any:
        """One prompt's part of an input, or None."""
        array = self._arrays.get(name)
        return None if array is None else array[row]

    def scalar(self, name: str, row: int = 0, default: Any = None) -> Any:
        """The single value of an input for one prompt, as a Python value."""
        array = self._arrays.get(name)
        if array is None:
            return default
        values = array[row : row + 1]
        if values.size != 1:
            raise RequestError(f"{self.label(name)} holds {values.size} values; one is expected", "invalid_request")
        return values.item()

    def texts(self, name: str, row: int = 0) -> tuple[str, ...]:
        """The strings of an input for one prompt, those that are not empty; () where it was not sent."""
        array = self._arrays.get(name)
        if array is None:
            return ()
        try:
            return tuple(raw.decode("utf-8") for raw in array[row].ravel().tolist() if raw)
        except UnicodeDecodeError:
            raise RequestError(f"{self.label(name)} is not valid UTF-8; send UTF-8", "invalid_text") from None
