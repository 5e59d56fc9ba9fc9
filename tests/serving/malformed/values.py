"""Values of inputs that no model may take, and the small valid requests that they are put into."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.serving.raw_requests import request

VALID: dict[str, dict[str, Any]] = {
    "ensemble": {"text_input": "tea", "max_tokens": 4, "stream": True},
    "tensorrt_llm_bls": {"text_input": "tea", "max_tokens": 4, "stream": True},
    "tensorrt_llm": {"input_ids": [5, 6, 7], "input_lengths": 3, "request_output_len": 4, "streaming": True},
    "preprocessing": {"QUERY": "tea", "REQUEST_OUTPUT_LEN": 4},
    "postprocessing": {"TOKENS_BATCH": [[5, 6, 7]], "SEQUENCE_LENGTH": [3]},
}
"""A small request to each model, as JSON for the generate endpoint."""
MODELS = tuple(VALID)

OPTIONAL: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.9,
    "seed": 7,
    "repetition_penalty": 1.1,
    "min_tokens": 1,
    "presence_penalty": 0.1,
    "return_log_probs": True,
    "end_id": 2,
    "pad_id": 0,
    "priority": 1,
    "stop_words": "stop",
    "num_return_sequences": 2,
    "deadline_ms": 60000,
    "return_perf_metrics": True,
    "guided_decoding_guide_type": "json",
    "exclude_input_in_output": True,
}
"""Optional inputs of the models that take text, with values that are right."""
TEXTUAL = ("ensemble", "tensorrt_llm_bls")

NAN, INFINITY = float("nan"), float("inf")
_NO_NUMBER: list[Any] = ["", "text", "NaN", True, {}, {"a": {"b": []}}, [1, "two", None], [None], [{}]]
_NO_FLOAT: list[Any] = [*_NO_NUMBER, NAN, INFINITY, -INFINITY, [0.5, 0.5]]
_NO_INTEGER: list[Any] = [*_NO_NUMBER, 1.5, NAN, 1e308, 10**400, 2**64, [1, 2]]
_NO_COUNT: list[Any] = [*_NO_NUMBER, 1.5, -1, NAN, 10**400]
_NO_IDS: list[Any] = [*_NO_NUMBER, 1.5, NAN]
_NO_TEXT: list[Any] = [5, -1.5, True, NAN, 10**400, {}, {"a": {"b": []}}, [1, "two", None], [None], ["a", 5]]
_NO_FLAG: list[Any] = [5, 1.5, "true", "", {}, [1, 2], [None]]

_FLOATS = ("temperature", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "length_penalty")
_INTEGERS = (
    *("max_tokens", "top_k", "min_tokens", "beam_width", "num_return_sequences", "deadline_ms", "priority", "end_id"),
    *("pad_id", "input_lengths", "request_output_len", "runtime_top_k", "prompt_vocab_size", "REQUEST_OUTPUT_LEN"),
    *("END_ID", "SEQUENCE_LENGTH"),
)
_FLAGS = ("stream", "streaming", "return_log_probs", "return_perf_metrics", "return_context_logits")
_TEXTS = (
    "text_input",
    "stop_words",
    "bad_words",
    "guided_decoding_guide_type",
    "QUERY",
    "STOP_WORDS_DICT",
    "IMAGE_URL",
)
_NO_VALUES: dict[str, list[Any]] = {
    **dict.fromkeys(_FLOATS, _NO_FLOAT),
    **dict.fromkeys(_INTEGERS, _NO_INTEGER),
    **dict.fromkeys(_FLAGS, _NO_FLAG),
    **dict.fromkeys(_TEXTS, _NO_TEXT),
    **dict.fromkeys(("seed", "lora_task_id"), _NO_COUNT),
    **dict.fromkeys(("input_ids", "TOKENS_BATCH", "draft_input_ids", "CHUNK_HEADER"), _NO_IDS),
}

_OF_TEXT: dict[str, list[Any]] = {
    "text_input": ["a\0b", "\0", "\ud800", "tea \udfff", "x" * 10**5, "x" * 2 * 10**6, ["a", "b"], []],
    "max_tokens": [0, -1, -7, -(2**31), 2046, 10**6, 2**31 - 1, []],
    "temperature": [-1, -1e-9, 1e308, NAN, INFINITY],
    "top_p": [1.1, 2, 1e308, NAN, INFINITY],
    "repetition_penalty": [0, -1, 0.0, -INFINITY, NAN],
    "presence_penalty": [9, -9, 2.001, NAN],
    "frequency_penalty": [2.5, -1e30, INFINITY, NAN],
    "length_penalty": [NAN, INFINITY, -INFINITY],
    "top_k": [-1, -7, -(2**31)],
    "min_tokens": [-1, -(2**31)],
    "beam_width": [0, -1, 65, 10**6, 2**31 - 1],
    "num_return_sequences": [0, -1, 257, 10**6],
    "deadline_ms": [0, -1, -(2**31)],
    "lora_task_id": [1, 7, 2**64 - 1],
    "return_context_logits": [True],
    "return_generation_logits": [True],
    "stop_words": ["word " * 5000],
    "bad_words": ["word " * 5000],
    "guided_decoding_guide_type": ["xml", "regex", "JSON", "ebnf_grammar", "json" * 10**4, "json_schema"],
    "guided_decoding_guide": ["{", "root ::= "],
    "heat": [1, "text", True, 1.5],
    "max_tokens ": [1, 4.5],
    "é" * 500: ["text"],
}
_OF_TOKENS: dict[str, list[Any]] = {
    "input_ids": [[], [-1, 1, 1], [5, 10**6, 5], [2**31 - 1, 1, 1], [1536, 1, 1], [2**63]],
    "input_lengths": [-1, 4, 0, 10**6, -(2**31), []],
    "request_output_len": [0, -1, 2046, 10**6, 2**31 - 1, []],
    "runtime_top_k": [-1, -(2**31)],
    "runtime_top_p": [2, NAN, INFINITY],
    "temperature": [-1, NAN, INFINITY],
    "repetition_penalty": [0, -1, NAN],
    "beam_width": [0, 65, 10**6],
    "num_return_sequences": [0, 257],
    "deadline_ms": [0, -1],
    "min_tokens": [-1],
    "stop_words_list": [[1, 2], [[1], [2, 3]]],
    "bad_words_list": [[[1], [2, 3]]],
    "draft_input_ids": [[-1], [10**6]],
    "embedding_bias": [[NAN]],
    "lora_task_id": [3],
    "prompt_vocab_size": [5],
}
_OF_PREPROCESSING: dict[str, list[Any]] = {
    "QUERY": ["a\0b", "\ud800", []],
    "STOP_WORDS_DICT": ["word " * 5000],
    "IMAGE_URL": ["http://nowhere"],
    "DECODER_QUERY": ["tea"],
    "heat": [1, "text"],
}
_OF_POSTPROCESSING: dict[str, list[Any]] = {
    "TOKENS_BATCH": [[], [[]], [[-1, 1, 1]], [[[[1]]]], [-(2**31), 1, 1]],
    "SEQUENCE_LENGTH": [[-1], [4], [10**6], [1, 2, 3], []],
    "CHUNK_HEADER": [[1], [0, 0, -1, 0], [0, 0, 0, -1], [0, 0, 0, 0, -7]],
}
_OF_OTHERS = {
    "tensorrt_llm": _OF_TOKENS,
    "preprocessing": _OF_PREPROCESSING,
    "postprocessing": _OF_POSTPROCESSING,
}


def wrong_values(model: str) -> dict[str, list[Any]]:
    """By input, values of its type, or nearly, that the model must refuse."""
    return _OF_OTHERS.get(model, _OF_TEXT)


def mistyped_values(model: str) -> dict[str, list[Any]]:
    """By input, JSON of other types than the model's."""
    return {name: _NO_VALUES[name] for name in (*VALID[model], *wrong_values(model)) if name in _NO_VALUES}


def tensors(model: str) -> list[tuple[Any, bytes]]:
    """The inputs of the valid request to a model, and their bytes."""
    values = dict(VALID[model])
    if model == "tensorrt_llm":
        values["input_ids"] = np.array([values["input_ids"]], np.int32)
    elif model == "postprocessing":
        values = {name: np.array([value], np.int32) for name, value in values.items()}
    elif model == "preprocessing":
        values["REQUEST_OUTPUT_LEN"] = np.array([[4]], np.int32)
    message = request(model, values)
    return list(zip(message.inputs, message.raw_input_contents, strict=True))
