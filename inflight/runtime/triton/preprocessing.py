"""The `preprocessing` model: text in, token ids out, many requests at once."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.common.garbage_collection import freeze_loaded
from inflight.common.request_error import RequestError
from inflight.runtime.streams.sequence_ids import sequence_id_factory
from inflight.runtime.triton.bounded_strings import bound_strings
from inflight.runtime.triton.inputs import (
    ADD_SPECIAL_TOKENS,
    TEXT_INPUTS,
    Inputs,
    check_parameter_names,
    parameters_json,
)
from inflight.runtime.triton.model_parameters import flag, parameters
from inflight.runtime.triton.prompts import PromptReader
from inflight.runtime.triton.round_robin import RoundRobinExecutor
from inflight.runtime.triton.stub.guard_launcher import end_with_server
from inflight.runtime.triton.tensors import as_request_error, error_response, tensor
from inflight.runtime.triton.word_tensors import (
    MAX_WORD_LENGTH,
    MAX_WORDS,
    check_word_count,
    check_words,
    pack,
    weighted_words,
)
from inflight.text.prompt_encoder import IncrementalWork
from inflight.text.tokenizer import encode, load_tokenizer

_CHARACTERS_PER_CALL = 32_768
"""Characters of one call's requests that are tokenized before the next call; about 40 ms."""
_CHARACTERS_PER_WORD = 8
"""A word's fixed cost, as the number of characters whose tokenizing takes as long."""
_MAX_PENDING_BYTES = 128 * 2**20
"""Limit of the bytes of all long requests in progress."""
_REQUEST_BYTES = 4096
"""Bytes that a request takes besides its texts."""
_MAX_WORD_CHARACTERS = MAX_WORDS * MAX_WORD_LENGTH
"""Limit of each word list of a request, for all prompts together."""
_MAX_WORD_IDS = 2**20
"""Limit of the token ids of a word list, whose rows are padded to the longest one."""

_MULTIMODAL_INPUTS = {
    "DECODER_QUERY": "decoder_text_input",
    "IMAGE_BYTES": "image_bytes_input",
    "IMAGE_URL": "image_url_input",
    "IMAGES": "IMAGES",
    "IMAGE_PIXELS": "image_input",
    "VIDEO_BYTES": "video_bytes_input",
}
"""Upstream's inputs for encoder-decoder and multimodal models, with their clients' names."""


class Preprocessing:
    """Tokenizes QUERY [B, 1], or MESSAGES [B, 1] where QUERY is empty; takes PROMPT_TOKEN_IDS [B, N] as they are.

    If a required input of an ensemble's step is missing, the step does not run and the response is empty with status
    200. So all inputs are optional here, and missing ones are refused.

    Outputs are INPUT_ID [B, longest] (right-padded) and REQUEST_INPUT_LEN [B, 1]. Stop words and bad words become [B,
    2, length] (see `word_tensors.pack`), biased words EMBEDDING_BIAS [B, vocabulary], or [B, 0] without any.
    """

    def initialize(self, args: dict[str, str]) -> None:
        end_with_server()
        bound_strings(pb_utils)
        # Each text is tokenized in the calling thread, so that a long one takes no thread from a short one.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        settings = parameters(args)
        self._model = args["model_name"]
        self._tokenizer = load_tokenizer(settings["tokenizer_dir"])
        with open(f"{settings['tokenizer_dir']}/engine.json", encoding="utf-8") as file:
            manifest = json.load(file)
        self._prompts = PromptReader(
            self._tokenizer,
            settings["tokenizer_dir"],
            manifest["max_seq_len"],
            manifest["vocab_size"],
            flag(settings, "add_special_tokens", default=True),
            flag(settings, "special_tokens_in_messages", default=False),
        )
        self._vocabulary_size = manifest["vocab_size"]
        self._end_id = next(iter(manifest["end_ids"]), -1)
        # Engines with a single end token get the others as stop words.
        self._extra_end_ids = manifest["end_ids"][1:] if flag(settings, "end_ids_as_stop_words", default=False) else []
        named = flag(settings, "assign_sequence_ids", default=False)
        self._sequence_id = sequence_id_factory(pb_utils.InferenceResponse) if named else None
        # Many models have no padding token; the ids after a prompt's length are never read.
        self._pad_id = max(self._end_id, 0) if manifest["pad_id"] is None else manifest["pad_id"]
        self._long_requests = RoundRobinExecutor(_MAX_PENDING_BYTES, pb_utils.Logger.log_error)
        freeze_loaded()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Respond to short requests; return None for longer ones, which respond later through their senders."""
        budget = _CHARACTERS_PER_CALL
        responses = []
        for request in requests:
            work = self._response(request)
            try:
                while (cost := next(work)) <= budget:
                    budget -= cost
                responses.append(self._defer(request, work))
            except StopIteration as done:
                responses.append(done.value)
        return responses

    def finalize(self) -> None:
        self._long_requests.close()

    def _defer(self, request: Any, work: IncrementalWork) -> Any:
        def respond(sender: Any) -> Iterator[int]:
            response = yield from work
            # Triton drops unrequested tensors without the interpreter lock, so it must not hold the last reference.
            _tensors = response.output_tensors()
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

        try:
            self._long_requests.submit(respond(request.get_response_sender()), _REQUEST_BYTES + _text_bytes(request))
        except RequestError as error:
            return error_response(error)
        return None

    def _response(self, request: Any) -> IncrementalWork:
        try:
            request_parameters = json.loads(parameters_json(request))
            check_parameter_names(request_parameters, inputs=TEXT_INPUTS)
            inputs = Inputs(request)
            named = {} if self._sequence_id is None else self._sequence_id(bool(np.any(inputs.array("STREAM"))))
            outputs = yield from self._outputs(inputs, request_parameters.get(ADD_SPECIAL_TOKENS))
            return pb_utils.InferenceResponse(outputs, **named)
        except Exception as error:
            return error_response(as_request_error(error, self._model))

    def _outputs(self, inputs: Inputs, add_special_tokens: bool | None) -> IncrementalWork:
        _check_text_only(inputs)
        max_tokens = inputs.array("REQUEST_OUTPUT_LEN")
        if max_tokens is None:
            raise RequestError("max_tokens is missing; send how many tokens the answer may have", "invalid_request")
        answered = bool(np.any(max_tokens))  # without, the caller wants to know the tokens
        rows = yield from self._prompts.read(inputs, add_special_tokens, fits=answered)
        prompts = len(rows)
        pad_ids = [[inputs.scalar("PAD_ID", row, self._pad_id)] for row in range(prompts)]
        bad_words = yield from self._words(inputs, "BAD_WORDS_DICT", "bad_words", prompts)
        stop_words = yield from self._words(inputs, "STOP_WORDS_DICT", "stop_words", prompts)
        bias = yield from self._bias(inputs, prompts)
        # Engines with a single end token get the others as stop words, unless the client set the end token.
        further = [[token_id] for token_id in self._extra_end_ids] if inputs.array("END_ID") is None else []
        input_ids = np.zeros((prompts, max(map(len, rows))), dtype=np.int32) + np.array(pad_ids, dtype=np.int32)
        for line, ids in zip(input_ids, rows, strict=True):
            line[: len(ids)] = ids
        return [
            pb_utils.Tensor("INPUT_ID", input_ids),
            tensor("REQUEST_INPUT_LEN", [[len(ids)] for ids in rows], np.int32),
            tensor("DECODER_INPUT_ID", pad_ids, np.int32),
            tensor("REQUEST_DECODER_INPUT_LEN", [[1]] * prompts, np.int32),
            pb_utils.Tensor("BAD_WORDS_IDS", pack(bad_words)),
            pb_utils.Tensor("STOP_WORDS_IDS", pack([[*words, *further] for words in stop_words])),
            pb_utils.Tensor("EMBEDDING_BIAS", bias),
            pb_utils.Tensor("REQUEST_OUTPUT_LEN", max_tokens),
            tensor("OUT_END_ID", [[inputs.scalar("END_ID", row, self._end_id)] for row in range(prompts)], np.int32),
            tensor("OUT_PAD_ID", pad_ids, np.int32),
            tensor("OUT_PROMPT_TABLE_EXTRA_IDS", np.zeros((prompts, 0)), np.uint64),
            tensor("OUT_STREAM_KEY", [[secrets.randbits(63) + 1] for _ in rows], np.uint64),
        ]

    def _words(self, inputs: Inputs, name: str, label: str, prompts: int) -> IncrementalWork:
        """Return the token ids of each prompt's words; empty ones are left out."""
        rows = yield from self._encoded([inputs.texts(name, row) for row in range(prompts)], label)
        longest = max(sum(map(len, words)) for words in rows)
        if longest * prompts > _MAX_WORD_IDS:
            raise RequestError(
                f"{label} holds {longest} token ids for one of {prompts} prompts; send at most"
                f" {_MAX_WORD_IDS // prompts}, or fewer prompts in one request",
                "invalid_parameter",
            )
        return rows

    def _encoded(self, rows: list[tuple[str, ...]], label: str) -> IncrementalWork:
        """Return the token ids of each prompt's words. Raises RequestError for too many or too long ones."""
        for words in rows:
            check_words(words, label)
        characters = sum(len(word) for words in rows for word in words)
        if characters > _MAX_WORD_CHARACTERS:
            raise RequestError(
                f"{label} holds {characters} characters for all prompts together; send at most"
                f" {_MAX_WORD_CHARACTERS} in one request",
                "invalid_parameter",
            )
        ids = []
        for words in rows:
            if words:
                yield sum(map(len, words)) + _CHARACTERS_PER_WORD * len(words)
            ids.append(encode(self._tokenizer, words, add_special_tokens=False) if words else [])
        return ids

    def _bias(self, inputs: Inputs, prompts: int) -> IncrementalWork:
        """Return what is added to each token's logit: the weights of the words that contain it."""
        pairs = [self._weighted(inputs, row) for row in range(prompts)]
        rows = yield from self._encoded([tuple(word for word, _ in row) for row in pairs], "embedding_bias_words")
        weighted = [
            [(ids, weight) for ids, (_, weight) in zip(words, row, strict=True)]
            for words, row in zip(rows, pairs, strict=True)
        ]
        if not any(weighted):
            return np.zeros((prompts, 0), dtype=np.float32)
        bias = np.zeros((prompts, self._vocabulary_size), dtype=np.float32)
        for line, words in zip(bias, weighted, strict=True):
            for ids, weight in words:
                line[ids] += weight
        return bias

    def _weighted(self, inputs: Inputs, row: int) -> list[tuple[str, float]]:
        """Return each biased word with its weight."""
        weights = inputs.row("EMBEDDING_BIAS_WEIGHTS", row)
        if weights is not None:
            check_word_count(weights.size, "embedding_bias_weights")
        return weighted_words(
            inputs.all_texts("EMBEDDING_BIAS_WORDS", row), [] if weights is None else weights.ravel().tolist()
        )


def _text_bytes(request: Any) -> int:
    arrays = (each.as_numpy() for each in request.inputs())
    return sum(len(text) for array in arrays if array.dtype == np.object_ for text in array.flat)


def _check_text_only(inputs: Inputs) -> None:
    for name, label in _MULTIMODAL_INPUTS.items():
        if _used(inputs.array(name)):
            raise RequestError(
                f"{label} is not supported: the model reads text only and has no encoder; leave it out",
                "unsupported_input",
            )
    for name in ("NUM_DRAFT_TOKENS", "USE_DRAFT_LOGITS"):
        if np.any(inputs.array(name)):
            raise RequestError(
                f"{name.lower()} is not supported: the engine drafts by itself where it was started with --draft-engine"
                " or --prompt-lookup; leave it out",
                "unsupported_input",
            )
    if np.any(inputs.array("PROMPT_TABLE_EXTRA_ID")):
        raise RequestError(
            "prompt_table_extra_id is not supported: there are no prompt tables; leave it out", "unsupported_input"
        )


def _used(values: Any) -> bool:
    """Return whether there is a non-empty text, or any pixel: an image may be black."""
    if values is None or values.dtype != np.object_:
        return values is not None and bool(values.size)
    return any(values.ravel().tolist())
