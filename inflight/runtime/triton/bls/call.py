"""The state of a request to `tensorrt_llm_bls`: its answers and its calls of other models."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.runtime.messages import GenerationRequest, RequestError
from inflight.runtime.streams.chunk_header import sequence_key
from inflight.runtime.text.detokenizer import Detokenizer
from inflight.runtime.text.stop_words import StopWords
from inflight.runtime.text.text_stream import TextDecoderFactory
from inflight.runtime.triton.bls.answer import TextAnswer
from inflight.runtime.triton.bls.last_responses import LastResponses
from inflight.runtime.triton.bls.request import TextRequest
from inflight.runtime.triton.response import Responder
from inflight.runtime.triton.stub.retained_responses import RetainedResponses
from inflight.runtime.triton.tensors import tensor

_CODE = re.compile(r"^(?P<sentence>.*) \[(?P<code>[a-z_]+)\]$", re.DOTALL)
_CODES_BY_WORDS = {
    "maximum queue size": "overloaded",
    "is not ready": "engine_restarting",
    "is not healthy": "engine_restarting",
}
"""For errors of Triton and of third-party models."""

Responses = Iterator[Any]
"""Triton's iterator over the responses of a decoupled model; it blocks until the next one."""


class BlsCall:
    """The answers to one request, and the engine's remaining responses once it has accepted a chunk subscription.

    `prepared` are the outputs of preprocessing, by name.
    """

    def __init__(
        self,
        request_id: str,
        request: TextRequest,
        prepared: Mapping[str, Any],
        responder: Responder,
        private_id: bool,
        parameters: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """With `private_id`, the engine never gets the client's own id: see `id`."""
        self.client_id = request_id
        # Clients may omit the id, and a request without one can't be stopped.
        self.id = f"{request_id}#{secrets.token_hex(8)}" if private_id or not request_id else request_id
        """The id of the engine's requests; unique, since engines without stream keys stop all requests with an id."""
        self.stop_requested = False
        self.request = request
        self.prepared = prepared
        self.responder = responder
        self.parameters = parameters
        """Request parameters for the engine's model."""
        self.answers: list[TextAnswer] = []
        """By prompt, then by sequence."""
        self.responses: Future[Iterator[Mapping[str, Any]]] = Future()
        self._lasts = LastResponses(request.prompts, request.sequences)
        self.finds_stop_words = False
        """Whether this model searches for stop words."""

    def create_answers(self, detokenizer: Detokenizer, accumulate: bool, search: bool) -> None:
        """Create the answers; with `search`, this model searches for stop words. Raises RequestError if it can't."""
        request = self.request
        for row in range(request.prompts):
            words = request.stop_word_request(self.prepared, row) if search else None
            self.finds_stop_words |= words is not None
            maker = TextDecoderFactory(
                detokenizer,
                partial(_stop_words, words, detokenizer),
                request.streaming,
                accumulate,
                () if request.exclude_input else self.prompt_ids(row),
            )
            limits = len(self.prompt_ids(row)), request.max_tokens(row)
            for sequence in range(request.sequences):
                key = sequence_key(self.prepared["OUT_STREAM_KEY"][row].item(), sequence)
                self.answers.append(
                    TextAnswer(self.responder, request, maker, _index_tensors(request, row, sequence), key, limits)
                )

    def prompt_ids(self, row: int) -> list[int]:
        ids: list[int] = self.prepared["INPUT_ID"][row, : self.prepared["REQUEST_INPUT_LEN"][row].item()].tolist()
        return ids

    def answer_for(self, tensors: Mapping[str, Any]) -> TextAnswer:
        """Return the answer of a response of the engine's model. Raises RequestError if there is no such answer."""
        return self.answers[self._lasts.answer_index(tensors)]

    def last_response(self, answer: TextAnswer) -> Mapping[str, Any]:
        """Return the last response of an answer whose end was announced. Raises RequestError for any other response."""
        return self._lasts.take_last(self.answers.index(answer), self.responses.result())

    def mark_stoppable(self) -> None:
        """Record that the engine has the request."""
        for answer in self.answers:
            answer.handle = answer.key


def prepare(model: str, request: TextRequest, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Tokenize a prompt. Raises the errors of preprocessing."""
    prepared = pb_utils.InferenceRequest(
        model_name=model,
        inputs=request.preprocessing_inputs(),
        requested_output_names=request.preprocessing_outputs(),
        parameters=dict(parameters),
    )
    return arrays(prepared.exec())


def stream(
    model: str,
    request_id: str,
    inputs: list[Any],
    outputs: list[str],
    retained: RetainedResponses,
    parameters: Mapping[str, Any] = MappingProxyType({}),
) -> Responses:
    """Call a decoupled model; return once its first response has come."""
    request = pb_utils.InferenceRequest(
        model_name=model,
        request_id=request_id,
        inputs=inputs,
        requested_output_names=outputs,
        parameters=dict(parameters),
    )
    return retained.call(request)


def arrays(response: Any) -> dict[str, Any]:
    """Return the tensors of a response, by name. Raises RequestError, with its code, for a response with an error."""
    if response.has_error():
        raise error_of(response.error().message())
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def error_of(message: str) -> RequestError:
    """Return a model's error as the exception that it raised."""
    found = _CODE.match(message)
    if found is not None:
        return RequestError(found["sentence"], found["code"])
    codes = (code for words, code in _CODES_BY_WORDS.items() if words in message.lower())
    return RequestError(message, next(codes, "invalid_request"))


def _stop_words(words: GenerationRequest | None, detokenizer: Detokenizer) -> StopWords | None:
    return None if words is None else StopWords(words, lambda: detokenizer)


def _index_tensors(request: TextRequest, row: int, sequence: int) -> list[Any]:
    """Return the index tensors of an answer if the request has several."""
    tags = [tensor("batch_index", [[row]], np.int32)] if request.prompts > 1 else []
    return [*tags, tensor("sequence_index", [[sequence]], np.int32)] if request.sequences > 1 else tags
