"""The `preprocessing` model: text in, token ids out, many requests at once."""

from __future__ import annotations

import json
import secrets
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.runtime.messages import RequestError
from inflight.runtime.model_parameters import flag, parameters
from inflight.runtime.tokenizer import check_size, checked_text, encode, load_tokenizer, longest_token_bytes
from inflight.runtime.triton_tensors import error_response, scalar

_PROTOCOL_PARAMETERS = {"id", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout"}
"""Of the KServe protocol; Triton hands them on with those that it doesn't know."""


class Preprocessing:
    """Tokenizes QUERY [B, 1] into INPUT_ID [B, longest] (right-padded) and REQUEST_INPUT_LEN [B, 1]."""

    def __init__(self, args: dict[str, str]) -> None:
        settings = parameters(args)
        self._tokenizer = load_tokenizer(settings["tokenizer_dir"])
        self._add_special_tokens = flag(settings, "add_special_tokens", default=True)
        with open(f"{settings['tokenizer_dir']}/engine.json", encoding="utf-8") as file:
            manifest = json.load(file)
        self._max_tokens = manifest["max_sequence_length"]
        self._longest_token = longest_token_bytes(self._tokenizer)
        self._end_id = next(iter(manifest["end_ids"]), -1)
        # Many models have no token for padding; what stands behind a prompt's length is never read.
        self._pad_id = max(self._end_id, 0) if manifest["pad_id"] is None else manifest["pad_id"]

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        try:
            query = pb_utils.get_input_tensor_by_name(request, "QUERY").as_numpy()
            _check_names(json.loads(request.parameters()))
            for raw in query[:, 0]:
                check_size(raw, "text_input", self._longest_token, self._max_tokens)
            texts = [checked_text(raw, "text_input") for raw in query[:, 0]]
            rows = encode(self._tokenizer, texts, self._add_special_tokens)
            lengths = np.array([[len(row)] for row in rows], dtype=np.int32)
            end_id = scalar(request, "END_ID", self._end_id)
            pad_id = scalar(request, "PAD_ID", self._pad_id)
        except RequestError as error:
            return error_response(error)
        input_ids = np.full((len(rows), int(lengths.max())), pad_id, dtype=np.int32)
        for line, row in zip(input_ids, rows, strict=True):
            line[: len(row)] = row
        output_len = pb_utils.get_input_tensor_by_name(request, "REQUEST_OUTPUT_LEN").as_numpy()
        keys = [[secrets.randbits(63) + 1] for _ in rows]
        return pb_utils.InferenceResponse(
            output_tensors=[
                pb_utils.Tensor("INPUT_ID", input_ids),
                pb_utils.Tensor("REQUEST_INPUT_LEN", lengths),
                pb_utils.Tensor("REQUEST_OUTPUT_LEN", output_len),
                pb_utils.Tensor("OUT_END_ID", np.full((len(rows), 1), end_id, dtype=np.int32)),
                pb_utils.Tensor("OUT_PAD_ID", np.full((len(rows), 1), pad_id, dtype=np.int32)),
                pb_utils.Tensor("OUT_STREAM_KEY", np.array(keys, dtype=np.uint64)),
            ]
        )


def _check_names(given: dict[str, Any]) -> None:
    """Refuse what Triton's generate endpoint passed on because no input has that name.

    A misspelt input would be ignored silently. An empty value asks for nothing, as in upstream's examples.
    """
    for name, value in given.items():
        if name not in _PROTOCOL_PARAMETERS and value not in ("", 0, False, None):
            raise RequestError(
                f"there is no input {name!r}; see the model's metadata for those it has", "invalid_request"
            )
