"""Upstream's input tensors of `tensorrt_llm`, read into a GenerationRequest."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from inflight.runtime.messages import GenerationRequest, RequestError
from inflight.runtime.request_values import SAMPLING_INPUTS, end_ids_from, sampling_from
from inflight.runtime.triton_tensors import scalar


def generation_request(request: Any, end_ids: tuple[int, ...]) -> GenerationRequest:
    """Read a Triton request; `end_ids` are the model's own, used unless the request names another end_id.

    Raises RequestError for a batch of several prompts and for values that can't be used.
    """
    return GenerationRequest(
        prompt_ids=_prompt_ids(request),
        max_tokens=scalar(request, "request_output_len"),
        end_ids=end_ids_from(scalar(request, "end_id"), end_ids),
        sampling=sampling_from({name: scalar(request, name) for name in SAMPLING_INPUTS}),
    )


def _prompt_ids(request: Any) -> tuple[int, ...]:
    tensor = pb_utils.get_input_tensor_by_name(request, "input_ids")
    if tensor is None:
        raise RequestError("input_ids is missing; send the prompt's token ids", "invalid_request")
    rows = tensor.as_numpy()
    if rows.shape[0] != 1:
        raise RequestError(f"input_ids holds {rows.shape[0]} prompts; send one prompt a request", "invalid_request")
    length = scalar(request, "input_lengths")
    if not 0 <= length <= rows.shape[1]:
        raise RequestError(
            f"input_lengths is {length}, and input_ids holds {rows.shape[1]} token ids", "invalid_request"
        )
    return tuple(rows[0, :length].tolist())
