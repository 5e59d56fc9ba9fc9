"""The `postprocessing` model: token ids in, text out; keeps nothing between calls."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.runtime.detokenizer import Chunk, Detokenizer
from inflight.runtime.messages import RequestError
from inflight.runtime.model_parameters import flag, parameters
from inflight.runtime.receipts import ReceiptSender
from inflight.runtime.request_values import check_ids, sequences
from inflight.runtime.tokenizer import load_tokenizer
from inflight.runtime.triton_tensors import error_response, scalar


class Postprocessing:
    """Decodes TOKENS_BATCH [1, beams, length] with CONTEXT_IDS [1, context] before it into OUTPUT [1, beams]."""

    def __init__(self, args: dict[str, str]) -> None:
        settings = parameters(args)
        skip_special_tokens = flag(settings, "skip_special_tokens", default=True)
        self._detokenizer = Detokenizer(load_tokenizer(settings["tokenizer_dir"]), skip_special_tokens)
        self._receipts = ReceiptSender(settings["engine_model_name"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Decode all chunks of the batch in one call, and acknowledge those that have a key.

        A request that can't be decoded is answered with an error, and the others of its batch as ever.
        """
        read = [_read(request) for request in requests]
        keys = [chunks.key for chunks in read if isinstance(chunks, _Chunks) and chunks.key]
        if keys:
            self._receipts.send(keys)
        texts = iter(
            self._detokenizer.texts([one for chunks in read if isinstance(chunks, _Chunks) for one in chunks.beams])
        )
        return [
            _response([next(texts) for _ in chunks.beams]) if isinstance(chunks, _Chunks) else error_response(chunks)
            for chunks in read
        ]

    def finalize(self) -> None:
        self._receipts.close()


class _Chunks(NamedTuple):
    """One request's sequences, and its key; its stream goes on where there is one."""

    beams: list[Chunk]
    key: int


def _read(request: Any) -> _Chunks | RequestError:
    try:
        return _chunks(request)
    except RequestError as error:
        return error


def _chunks(request: Any) -> _Chunks:
    tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()
    lengths = pb_utils.get_input_tensor_by_name(request, "SEQUENCE_LENGTH").as_numpy()
    context_tensor = pb_utils.get_input_tensor_by_name(request, "CONTEXT_IDS")
    context = [] if context_tensor is None else context_tensor.as_numpy()[0].tolist()
    key = scalar(request, "STREAM_KEY", 0)
    beams = sequences(tokens.tolist(), lengths.tolist())
    check_ids([*context, *(token for beam in beams for token in beam)])
    return _Chunks([Chunk(beam, context, final=key == 0) for beam in beams], key)


def _response(texts: list[str]) -> Any:
    output = np.array([[text.encode() for text in texts]], dtype=np.object_)
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT", output)])
