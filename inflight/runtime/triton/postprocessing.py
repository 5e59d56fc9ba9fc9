"""The `postprocessing` model: token ids in, text out, for the chunks of many streams at once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.common.garbage_collection import freeze_loaded
from inflight.common.request_error import RequestError
from inflight.runtime.engine.request_values import check_ids, read_sequences
from inflight.runtime.streams.chunk_header import ChunkHeader
from inflight.runtime.streams.context_cache import ContextCache
from inflight.runtime.streams.disconnect_detector import ChunkAckSender
from inflight.runtime.streams.sequence_ids import is_unary
from inflight.runtime.triton.bounded_strings import bound_strings
from inflight.runtime.triton.inputs import Inputs
from inflight.runtime.triton.model_parameters import flag, parameters
from inflight.runtime.triton.stub.guard_launcher import end_with_server
from inflight.runtime.triton.tensors import as_request_error, error_response
from inflight.text.detokenizer import Chunk, Detokenizer
from inflight.text.tokenizer import load_tokenizer, vocabulary_size

_SECONDS_PER_CHUNK = 80e-6
"""Time in which the engine's model sends a chunk."""
_MAX_WAIT_SECONDS = 0.005

_MAX_IDS = 131_072
"""Limit of a request's ids. Decoding them takes about 100 ms, during which all other requests wait."""
_MAX_LONG_SEQUENCES = 8
"""The limit is at least this many of the engine's longest answers: a beam search ends with all its beams at once."""


class Postprocessing:
    """Decodes TOKENS_BATCH [B, beams, length] into OUTPUT [B * beams], according to CHUNK_HEADER [B, 4 + n].

    OUTPUT has one dimension for any batch, as upstream's: its clients read the first element as a string. If the engine
    sends no context (`cache_context`), this model remembers it by the request's sequence id or id.
    """

    def initialize(self, args: dict[str, str]) -> None:
        end_with_server()
        bound_strings(pb_utils)
        # Decoding takes microseconds, and the tokenizer's threads would keep the engine's cores busy while they wait.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        settings = parameters(args)
        self._model = args["model_name"]
        skip_special_tokens = flag(settings, "skip_special_tokens", default=True)
        tokenizer = load_tokenizer(settings["tokenizer_dir"])
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens)
        with open(f"{settings['tokenizer_dir']}/engine.json", encoding="utf-8") as file:
            manifest = json.load(file)
        # Many models have more tokens than their tokenizer knows, and may generate one of those; it has no text.
        self._vocabulary_size = max(vocabulary_size(tokenizer), manifest["vocab_size"])
        self._max_ids = max(_MAX_IDS, _MAX_LONG_SEQUENCES * manifest["max_seq_len"])
        self._chunk_acks = ChunkAckSender(settings["engine_model_name"])
        cache_context = flag(settings, "cache_context", default=False)
        self._context_cache = ContextCache(self._detokenizer.special_token_ids) if cache_context else None
        freeze_loaded()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Decode all chunks of the batch in one call, and acknowledge those that have a key.

        A request that can't be decoded gets an error; the others of its batch are answered as usual.
        """
        read = [self._read(request) for request in requests]
        readable = [request for request in read if isinstance(request, _DecodeRequest)]
        keys = [context.key for request in readable for context in request.headers if context.key]
        if keys:
            self._chunk_acks.send(keys)
        texts = iter(self._detokenizer.texts([chunk for request in readable for chunk in request.chunks]))
        responses = [
            _response(request, texts) if isinstance(request, _DecodeRequest) else error_response(request)
            for request in read
        ]
        _wait_for_step([context.following for request in readable for context in request.headers])
        return responses

    def finalize(self) -> None:
        self._chunk_acks.close()

    def _read(self, request: Any) -> _DecodeRequest | RequestError:
        try:
            inputs = Inputs(request)
            lengths = inputs.required("SEQUENCE_LENGTH")
            rows = read_sequences(inputs.required("TOKENS_BATCH"), lengths, self._vocabulary_size, self._max_ids)
            headers = inputs.array("CHUNK_HEADER")
            contexts = [ChunkHeader(0) for _ in rows] if headers is None else list(map(ChunkHeader.from_row, headers))
            for context in contexts:
                check_ids(context.context_ids, "CHUNK_HEADER", self._vocabulary_size)
            return _DecodeRequest(self._chunks(request, inputs, rows, contexts), contexts)
        except Exception as error:
            return as_request_error(error, self._model)

    def _chunks(
        self, request: Any, inputs: Inputs, rows: list[list[list[int]]], contexts: list[ChunkHeader]
    ) -> list[list[Chunk]]:
        stream = None if self._context_cache is None else _stream_id(request, inputs)
        if self._context_cache is None or stream is None:
            return [
                [Chunk(ids, context.context_ids, final=context.key == 0) for ids in row]
                for row, context in zip(rows, contexts, strict=True)
            ]
        return [
            [self._context_cache.next_chunk((stream, number, beam), ids) for beam, ids in enumerate(row)]
            for number, row in enumerate(rows)
        ]


class _DecodeRequest(NamedTuple):
    """The chunks of each prompt's sequences, and their headers."""

    rows: list[list[Chunk]]
    headers: list[ChunkHeader]

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for row in self.rows for chunk in row]


def _stream_id(request: Any, inputs: Inputs) -> Hashable:
    """Return an identifier of an answer's stream; None if it can't be distinguished from others, or is unary.

    If Triton permits it, preprocessing sets a unique sequence id, which also marks unary answers. Else it is the
    request's id, which clients choose. A request for several answers has one id for all.
    """
    name = request.correlation_id() or request.request_id()
    if is_unary(name):
        return None
    return (name, inputs.scalar("BATCH_INDEX"), inputs.scalar("SEQUENCE_INDEX")) if name else None


def _response(request: _DecodeRequest, texts: Any) -> Any:
    decoded = [
        _without_end(next(texts), context.dropped_characters).encode()
        for row, context in zip(request.rows, request.headers, strict=True)
        for _ in row
    ]
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array(decoded, dtype=np.object_))])


def _without_end(text: str, characters: int) -> str:
    return text[: len(text) - characters] if characters else text


def _wait_for_step(following: list[int]) -> None:
    """Wait for the other chunks of the same engine step, so that the next execution decodes them all at once.

    The first chunk starts an execution by itself. Each execution has a fixed cost, which takes time from the engine's
    forward pass. A single stream does not wait.
    """
    if following and following[-1]:
        time.sleep(min(following[-1] * _SECONDS_PER_CHUNK, _MAX_WAIT_SECONDS))
