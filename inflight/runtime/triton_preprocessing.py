"""The `preprocessing` model: text in, token ids out, many requests at once."""

from __future__ import annotations

import json
import secrets
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.runtime.messages import RequestError
from inflight.runtime.model_parameters import flag, parameters
from inflight.runtime.prompts import PromptReader
from inflight.runtime.server_watch import end_with_server
from inflight.runtime.stream_names import stream_namer
from inflight.runtime.tokenizer import encode, load_tokenizer
from inflight.runtime.triton_inputs import Inputs, check_names, parameters_json
from inflight.runtime.triton_tensors import as_refusal, error_response, tensor
from inflight.runtime.word_lists import check_words, pack, weighted_words

_NOT_TEXT = {
    "DECODER_QUERY": "decoder_text_input",
    "IMAGE_BYTES": "image_bytes_input",
    "IMAGE_URL": "image_url_input",
    "IMAGES": "IMAGES",
    "VIDEO_BYTES": "video_bytes_input",
}
"""Upstream's inputs for encoder-decoder and multimodal models, and what the models that send them call them."""


class Preprocessing:
    """Tokenizes QUERY [B, 1], or MESSAGES [B, 1] where that is empty.

    It gives INPUT_ID [B, longest] (right-padded) and REQUEST_INPUT_LEN [B, 1].
    Words to stop at or to avoid become [B, 2, length] as `word_lists.pack` says, biased words EMBEDDING_BIAS
    [B, vocabulary], or [B, 0] without any.
    """

    def __init__(self, args: dict[str, str]) -> None:
        end_with_server()
        settings = parameters(args)
        self._model = args["model_name"]
        self._tokenizer = load_tokenizer(settings["tokenizer_dir"])
        with open(f"{settings['tokenizer_dir']}/engine.json", encoding="utf-8") as file:
            manifest = json.load(file)
        self._prompts = PromptReader(
            self._tokenizer,
            settings["tokenizer_dir"],
            manifest["max_sequence_length"],
            flag(settings, "add_special_tokens", default=True),
        )
        self._vocabulary_size = manifest["vocab_size"]
        self._end_id = next(iter(manifest["end_ids"]), -1)
        # Engines that know one end token alone stop at the others as at words.
        self._further_ends = manifest["end_ids"][1:] if flag(settings, "all_ends_stop", default=False) else []
        named = flag(settings, "name_streams", default=False)
        self._name = stream_namer(pb_utils.InferenceResponse) if named else None
        # Many models have no token for padding; what stands behind a prompt's length is never read.
        self._pad_id = max(self._end_id, 0) if manifest["pad_id"] is None else manifest["pad_id"]

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        try:
            check_names(json.loads(parameters_json(request)))
            inputs = Inputs(request)
            named = {} if self._name is None else self._name(bool(np.any(inputs.array("STREAM"))))
            return pb_utils.InferenceResponse(self._outputs(inputs), **named)
        except Exception as error:
            return error_response(as_refusal(error, self._model))

    def _outputs(self, inputs: Inputs) -> list[Any]:
        _check_text_only(inputs)
        rows = self._prompts.read(inputs)
        prompts = len(rows)
        pad_ids = [[inputs.scalar("PAD_ID", row, self._pad_id)] for row in range(prompts)]
        input_ids = np.zeros((prompts, max(map(len, rows))), dtype=np.int32) + np.array(pad_ids, dtype=np.int32)
        for line, ids in zip(input_ids, rows, strict=True):
            line[: len(ids)] = ids
        return [
            pb_utils.Tensor("INPUT_ID", input_ids),
            tensor("REQUEST_INPUT_LEN", [[len(ids)] for ids in rows], np.int32),
            tensor("DECODER_INPUT_ID", pad_ids, np.int32),
            tensor("REQUEST_DECODER_INPUT_LEN", [[1]] * prompts, np.int32),
            pb_utils.Tensor("BAD_WORDS_IDS", self._words(inputs, "BAD_WORDS_DICT", "bad_words", prompts)),
            pb_utils.Tensor("STOP_WORDS_IDS", pack(self._stops(inputs, prompts))),
            pb_utils.Tensor("EMBEDDING_BIAS", self._bias(inputs, prompts)),
            pb_utils.Tensor("REQUEST_OUTPUT_LEN", inputs.required("REQUEST_OUTPUT_LEN")),
            tensor("OUT_END_ID", [[inputs.scalar("END_ID", row, self._end_id)] for row in range(prompts)], np.int32),
            tensor("OUT_PAD_ID", pad_ids, np.int32),
            tensor("OUT_PROMPT_TABLE_EXTRA_IDS", np.zeros((prompts, 0)), np.uint64),
            tensor("OUT_STREAM_KEY", [[secrets.randbits(63) + 1] for _ in rows], np.uint64),
        ]

    def _words(self, inputs: Inputs, name: str, label: str, prompts: int) -> Any:
        """The words of each prompt as upstream packs them; empty ones are left out."""
        return pack([self._word_ids(inputs, name, label, row) for row in range(prompts)])

    def _stops(self, inputs: Inputs, prompts: int) -> list[list[list[int]]]:
        """The stop words of each prompt; further end tokens among them, unless the client chose where to end."""
        further = [[token_id] for token_id in self._further_ends] if inputs.array("END_ID") is None else []
        return [[*self._word_ids(inputs, "STOP_WORDS_DICT", "stop_words", row), *further] for row in range(prompts)]

    def _word_ids(self, inputs: Inputs, name: str, label: str, row: int) -> list[list[int]]:
        words = inputs.texts(name, row)
        check_words(words, label)
        return encode(self._tokenizer, words, add_special_tokens=False) if words else []

    def _bias(self, inputs: Inputs, prompts: int) -> Any:
        """What is to be added to each token's logit: the weights of the words that it is part of."""
        weighted = [self._weighted(inputs, row) for row in range(prompts)]
        if not any(weighted):
            return np.zeros((prompts, 0), dtype=np.float32)
        bias = np.zeros((prompts, self._vocabulary_size), dtype=np.float32)
        for line, words in zip(bias, weighted, strict=True):
            for ids, weight in words:
                line[ids] += weight
        return bias

    def _weighted(self, inputs: Inputs, row: int) -> list[tuple[list[int], float]]:
        """The token ids and the weight of each biased word."""
        given = inputs.row("EMBEDDING_BIAS_WEIGHTS", row)
        pairs = weighted_words(
            inputs.all_texts("EMBEDDING_BIAS_WORDS", row), [] if given is None else given.ravel().tolist()
        )
        words = [word for word, _ in pairs]
        check_words(words, "embedding_bias_words")
        rows = encode(self._tokenizer, words, add_special_tokens=False) if words else []
        return [(ids, weight) for ids, (_, weight) in zip(rows, pairs, strict=True)]


def _check_text_only(inputs: Inputs) -> None:
    for name, label in _NOT_TEXT.items():
        if _used(inputs.array(name)):
            raise RequestError(
                f"{label} is not supported: the model reads text alone and has no encoder; leave it out",
                "unsupported_input",
            )
    if np.any(inputs.array("PROMPT_TABLE_EXTRA_ID")):
        raise RequestError(
            "prompt_table_extra_id is not supported: there are no prompt tables; leave it out", "unsupported_input"
        )


def _used(values: Any) -> bool:
    """Any text that is not empty, and any pixel: an image may be black."""
    if values is None or values.dtype != np.object_:
        return values is not None and bool(values.size)
    return any(values.ravel().tolist())
