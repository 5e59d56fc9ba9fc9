"""The wording of a request's errors; INFLIGHT_UPDATE_GOLDEN=1 writes messages.txt again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from inflight.runtime.encoders.manifest import EncoderDescription
from inflight.runtime.encoders.tokenize import PlainText
from inflight.runtime.engine.request_values import (
    check_ids,
    check_sampling,
    checked_count,
    deadline_from,
    guide_from,
    sampling_from,
)
from inflight.runtime.messages import SamplingConfig
from inflight.runtime.streams.chunk_header import ChunkHeader
from inflight.runtime.triton.encoders.tasks import TASKS
from inflight.runtime.triton.inputs import check_parameter_names
from inflight.runtime.triton.request_metadata import metadata_from
from inflight.runtime.triton.unsupported_inputs import check_supported
from inflight.runtime.triton.word_tensors import check_words, unpack, weighted_words
from inflight.text.message_json import parse_kwargs, parse_messages
from inflight.text.tokenizer import check_size, decoded_text
from tests.fixtures.errors import Cause, check_messages
from tests.fixtures.waiting import wait_until
from tests.runtime import test_messages
from tests.runtime.encoders import test_batch_runner, test_tokenize
from tests.runtime.engine.test_request_values import OUT_OF_BOUNDS
from tests.runtime.test_messages import LIMITS
from tests.runtime.triton.request_inputs import inputs_of
from tests.text import test_tokenizer


def raise_first(found: Sequence[object]) -> None:
    for one in found:
        if isinstance(one, Exception):
            raise one


def not_computed(first: int) -> None:
    with test_batch_runner.batching(test_batch_runner.SumEncoder()) as batcher:
        request = test_batch_runner.ask(batcher, [first])
        wait_until(lambda: request.results)
    raise_first(request.results[0])


def encoder_request(task: str, **arrays: Any) -> None:
    """Read a request, with the errors of its texts."""
    description = EncoderDescription(
        "openvino", task, ("input_ids",), 64, 200, 8, 0, "right", True, (2, 4), {"query": "q: "}, None, "none", (), {}
    )
    texts = {"text_input", "input_type", "query", "documents"}
    given = {name: np.array(array, np.object_ if name in texts else np.int32) for name, array in arrays.items()}
    raise_first(TASKS[task](description).read(inputs_of(**given)).texts)


def test_sentences(tmp_path: Path) -> None:
    words = test_tokenize.TOKENIZER
    causes: list[Cause] = [
        *(partial(words.check_ids, np.array(ids, np.int32), False) for ids in ([], [9999], [5] * 99)),
        lambda: raise_first(words.tokenize([PlainText("w1 " * 20, truncate=False)])),
        *(partial(words.check_query, query) for query in ("w1 " * 20, " " * 5000)),
        lambda: raise_first(words.tokenize([PlainText("w1 " * 9000, truncate=False)])),
        lambda: raise_first(words.tokenize([PlainText(" " * (1 << 21), truncate=True)])),
        *(partial(not_computed, first) for first in (test_batch_runner.FAILS, test_batch_runner.NAN)),
        partial(encoder_request, "embed"),
        partial(encoder_request, "embed", text_input=[[b"a"]], dimensions=[[9]]),
        partial(encoder_request, "embed", text_input=[[b"a"]], input_type=[[b"poem"]]),
        partial(encoder_request, "embed", text_input=[[b"\xff"]]),
        partial(encoder_request, "classify", input_ids=[[1, 2]], input_lengths=[[3]]),
        partial(encoder_request, "rerank", query=[b"a", b"b"], documents=[b"c"]),
        partial(encoder_request, "rerank", query=[b"a"], documents=[b"c"] * 1025),
        *(partial(LIMITS.check, request) for request, *_ in test_messages.REFUSED),
        partial(check_sampling, SamplingConfig(top_k=-3)),
        *(partial(sampling_from, {name: value}) for name, value in OUT_OF_BOUNDS),
        partial(check_ids, [3, 8], "ids", 8),
        partial(checked_count, "num_return_sequences", 5, 4),
        partial(deadline_from, 0, 5),
        partial(guide_from, "yaml", "a"),
        partial(guide_from, "regex", None),
        partial(guide_from, "json", "{}"),
        partial(guide_from, None, "a"),
        partial(parse_messages, b"{}"),
        partial(parse_messages, b"[" * 60),
        partial(parse_kwargs, b"[]"),
        *(partial(decoded_text, raw, "text_input") for raw, *_ in test_tokenizer.REFUSED),
        partial(check_size, b"x" * 61, "text_input", 6, 10),
        partial(inputs_of(streaming=[[True], [False]]).common, "streaming"),
        partial(inputs_of(streaming=[[True, True]]).common, "streaming"),
        partial(check_parameter_names, {"temprature": 0.5}),
        partial(check_parameter_names, {"temprature": 0.5}, inputs=("top_p", "temperature")),
        partial(check_parameter_names, {"request_type": "context_only"}),
        partial(metadata_from, {"tenant": 3}),
        partial(metadata_from, {"tenant": "a" * 129}),
        partial(metadata_from, {"tenant": "a\nb"}),
        partial(check_supported, "openvino", "prompt_embedding_table", np.full((1, 2), 3, np.int32), "prompt_table"),
        partial(unpack, np.array([1, 2, 3], np.int32), "stop_words_list"),
        partial(unpack, np.array([[1, 2, 3], [0, -1, -1]], np.int32), "stop_words_list"),
        partial(check_words, ["a"] * 257, "stop_words"),
        partial(check_words, ["b" * 1025], "stop_words"),
        partial(weighted_words, (), [0.5]),
        partial(weighted_words, ("tea",), []),
        partial(ChunkHeader.from_row, np.array([1], np.int32)),
    ]
    check_messages(Path(__file__).with_name("messages.txt"), causes, tmp_path)
